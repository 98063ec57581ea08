#pragma once

#include <cstdint>
#include <limits>

#include "trireme/device/device.hpp"
#include "trireme/kernels/step_status.hpp"
#include "trireme/kernels/update.hpp"

// What lies between the sums of squares of rows and an update: sums by tensor, the judgement of the
// step, trust ratios. All of it in double.

namespace trireme::kernels {

/// sums[l] = the sum of values[places[i]] over begins[l] <= i < begins[l + 1]: on the host one
/// after the other, on a device in an order that only the length decides.
struct ListSums {
  const double* values = nullptr;
  const std::int64_t* indices = nullptr;
  const std::int64_t* offsets = nullptr;  ///< [lists + 1]
  std::int64_t lists = 0, terms = 0;      ///< terms: begins[lists]
  double* sums = nullptr;
};
void sum_lists(const Stream&, const ListSums&);

/// Sums of squares over a whole model, [parts, tensors + 1]: by tensor, and behind them that of all
/// running statistics. Parts are added in their order.
struct PartialSquareSums {
  const double* sums = nullptr;
  std::int64_t parts = 1, tensors = 0;
};

/// How the loss scale moves (Micikevicius et al. 2018, section 3.2): a gradient that is not finite
/// under a loss that is lowers it, a run of good ones lets it grow. Scale and factors are powers of
/// two, by which nothing is rounded.
struct LossScaling {
  double growth = 1, backoff = 1, min_scale = 1, max_scale = 1;
  std::int64_t growth_interval = 0;  ///< good steps; 0: the scale stands
};

/// judgement = of the update that is about to be made, by the squares of its gradient; its
/// `updates` and loss scale go on from where they stood. All tensors but statistics get the
/// learning rate.
struct DecideStepArgs {
  PartialSquareSums gradient;
  double loss_scale = 1;  ///< that the gradient was seeded with: an earlier one where the judgement
                          ///< was not read since
  LossScaling loss_scaling = {};
  bool loss_finite = true;           ///< as far as the host knows
  const SampleSums* loss = nullptr;  ///< of the step whose gradient it is: its mean must be finite
                                     ///< and at most loss_limit; null: the host has seen it
  double loss_limit = std::numeric_limits<double>::infinity();
  float learning_rate = 0;
  double clip_norm = 0;         ///< 0: off
  double beta1 = 0, beta2 = 0;  ///< of the bias corrections
  TensorRates* rates = nullptr;
  std::int64_t tensors = 0;  ///< of `rates`
  StepDecision* decision = nullptr;
};
void decide_step(const Stream&, const DecideStepArgs&);

/// A tensor that trust applies to: its place among the rates, and among the sums of squares.
struct TrustRatioTensor {
  std::int32_t tensor = 0, sum_index = 0;
};
/// rates[].trust = for these tensors, from the norms of weights and gradients (lamb: directions).
/// The others keep theirs.
struct TrustRatioArgs {
  PartialSquareSums weight, gradient;
  const TrustRatioTensor* tensors = nullptr;
  std::int64_t count = 0;
  TensorRates* rates = nullptr;
  const StepDecision* decision = nullptr;
};
/// LARS (You et al. 2017, algorithm 1): coefficient * |w| / (|g| + decay * |w|), of the clipped
/// gradient; 1 where a norm is 0.
void lars_trust(const Stream&, double coefficient, const TrustRatioArgs&);
/// LAMB (You et al. 2020, algorithm 2): |w| / |direction|, at most 10; 1 where a norm is 0.
void lamb_trust(const Stream&, const TrustRatioArgs&);

}  // namespace trireme::kernels
