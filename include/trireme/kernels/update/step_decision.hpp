// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "trireme/device/device.hpp"
#include "trireme/kernels/update/step_status.hpp"
#include "trireme/kernels/update/update.hpp"

// The steps between the square sums of rows and the update: sums per tensor, the decision about the
// step, and trust ratios. All arithmetic is in double precision and runs where the buffers are, so
// the host does not wait for a norm.
//
//   compute stream | row_square_sums | sum_lists | decide_step | lars_trust / lamb_trust | update_*
//   reads          | gradient        | row sums  | list sums   | list sums, decision     | decision
//   host           |   enqueues all of these, then reads the decision one or more steps later

namespace trireme::kernels {

/// Arguments of sum_lists(): sums[l] = the sum of values[indices[i]] over offsets[l] <= i <
/// offsets[l + 1].
/// The host adds in the order of i. A device adds in an order that depends on the length of the
/// list only.
struct ListSums {
  const double* values = nullptr;
  const std::int64_t* indices = nullptr;
  /// [lists + 1]
  const std::int64_t* offsets = nullptr;
  /// terms: offsets[lists]
  std::int64_t lists = 0, terms = 0;
  double* sums = nullptr;
};
/// Enqueues the sum of every list.
void sum_lists(const Stream&, const ListSums&);

/// Sums of squares over a whole model, [parts, tensors + 1]. Column t belongs to tensor t, the last
/// column to all running statistics together. A column's parts are added in ascending order.
struct PartialSquareSums {
  const double* sums = nullptr;
  std::int64_t parts = 1, tensors = 0;
};

/// Dynamic loss scaling (Micikevicius et al. 2018, section 3.2). A gradient that overflows under a
/// finite loss lowers the scale; `growth_interval` applied steps without an overflow raise it.
/// All values are powers of two, so that scaling rounds nothing.
struct LossScaling {
  double growth = 1, backoff = 1, min_scale = 1, max_scale = 1;
  /// applied steps before the scale grows; 0: the scale is constant
  std::int64_t growth_interval = 0;
};

/// The decays of a rule, from which the decision computes values of its tensors.
struct RuleDecays {
  float momentum = 0;           ///< of the velocity
  double beta1 = 0, beta2 = 0;  ///< of the moments, for their bias corrections
};

/// Arguments of decide_step(): *decision = whether and how the update of this step is applied, from
/// the square sums of its gradient.
/// Its update count and loss scale continue from the values that *decision had. rates[].rate = the
/// learning rate times rates[].rate_ratio, and rates[].momentum and rates[].bias_correction* follow
/// from the decays of their rule, except for running statistics.
struct DecideStepArgs {
  PartialSquareSums gradient;
  /// loss scale under which this gradient was computed. It may be older than decision->loss_scale.
  double loss_scale = 1;
  LossScaling loss_scaling = {};
  /// false: the host has already seen a loss that is not finite
  bool loss_finite = true;
  /// sums of the step that produced the gradient: their mean must be finite and at most loss_limit.
  /// null: the host has checked it
  const SampleSums* loss = nullptr;
  double loss_limit = std::numeric_limits<double>::infinity();
  /// Labels of the step by whose number the gradient was divided. If fewer count (loss->count), it
  /// is divided by theirs. 0: all count
  double labels = 0;
  float learning_rate = 0;
  /// 0: no clipping
  double clip_norm = 0;
  /// by TensorRates::rule
  RuleDecays rules[max_rules] = {};
  TensorRates* rates = nullptr;
  /// length of `rates`
  std::int64_t tensors = 0;
  StepDecision* decision = nullptr;
};
/// Enqueues the decision in one team. Every update kernel of this step reads it.
void decide_step(const Stream&, const DecideStepArgs&);

/// A tensor with a trust ratio: its index among the rates, and its column of the square sums.
struct TrustRatioTensor {
  std::int32_t tensor = 0, sum_index = 0;
  double max = std::numeric_limits<double>::infinity();  ///< a larger ratio becomes this one
};
/// Arguments of lars_trust() and lamb_trust(): rates[].trust_ratio = for these tensors, from the
/// norms of weights and gradients (LAMB: directions). Other tensors keep their ratio.
struct TrustRatioArgs {
  PartialSquareSums weight, gradient;
  const TrustRatioTensor* tensors = nullptr;
  std::int64_t count = 0;
  TensorRates* rates = nullptr;
  const StepDecision* decision = nullptr;
  /// if not null: ratios[sum_index] = the ratio too
  double* ratios = nullptr;
};
/// LARS (You et al. 2017, algorithm 1): coefficient * |w| / (|g| + decay * |w|), where g is the
/// clipped gradient; 1 if a norm is 0.
void lars_trust(const Stream&, double coefficient, const TrustRatioArgs&);
/// LAMB (You et al. 2020, algorithm 2): |w| / |direction|, at most 10; 1 if a norm is 0.
void lamb_trust(const Stream&, const TrustRatioArgs&);

}  // namespace trireme::kernels
