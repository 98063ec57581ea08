// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// One row of a flat buffer: the unit from which norms, buckets and ZeRO partitions are built.
struct FlatRow {
  std::int64_t offset = 0, elements = 0;
  /// index of its tensor in the layout
  std::int32_t tensor = 0;
};

/// The limit of a gradient whose elements are not clipped.
inline constexpr float unlimited = std::numeric_limits<float>::infinity();

/// sums[r] = the sum of squares of row r of `flat`, in double precision. The order depends on the
/// row's length only, not on its address. `limit`: elements are clipped to [-limit, limit] first,
/// as in Update; `flat` does not change.
void row_square_sums(const Stream&, const float* flat, const FlatRow* rows, std::int64_t row_count,
                     double* sums, float limit = unlimited);

/// A range of a flat buffer within one tensor: the unit of work of an update kernel.
struct FlatChunk {
  std::int64_t offset = 0;
  std::int32_t elements = 0, tensor = 0;
  /// element type of its working weights
  ElementType working_type = ElementType::float32;
  /// byte offset of its working weights from the start of Update::working_weights
  std::int64_t working_offset = 0;
};

/// Value of TensorRates::rule for a running statistic, w = (1 - rate) * w + rate * g, which has no
/// rule and no slots.
inline constexpr std::int32_t statistic_rule = -1;
/// The largest numbers of rules of an optimizer, and of slots of a rule.
inline constexpr int max_rules = 4, max_slots = 2;

/// Per-tensor values of one update; kernels index arrays of them by tensor.
struct TensorRates {
  /// learning rate. Running statistics: their momentum (0.1)
  float rate = 0;
  float weight_decay = 0;
  /// the factor that a rule computes from norms of the whole tensor, or from its extents
  float trust_ratio = 1;
  /// index of the rule in DecideStepArgs::rules, or statistic_rule
  std::int32_t rule = 0;
  /// the decay of the velocity in this step
  float momentum = 0;
  /// factor of the learning rate of a step for this tensor
  float rate_ratio = 1;
  /// 1 - beta^t, where t counts the updates since the moments of this tensor began
  float bias_correction1 = 1, bias_correction2 = 1;
  /// updates that were applied before the moments of this tensor began
  std::int64_t updates_before = 0;
};

/// Decision about one step. decide_step() (kernels/update/step_decision.hpp) writes it on the
/// device; every update kernel of the step reads it.
struct StepDecision {
  /// 0: the step changes nothing
  std::int32_t apply = 1;
  /// clip factor / loss scale
  float gradient_factor = 1;
  /// gradient norm over all weights of the model, before clipping
  double gradient_norm = 0;
  /// gradient_factor in double precision
  double gradient_factor_double = 1;
  /// updates applied so far, including this one
  std::int64_t update_count = 0;
  /// loss scale for the next gradient
  double loss_scale = 1;
  /// updates applied since the scale last changed
  std::int64_t good_steps = 0;
  /// 1: not applied because the scale was too large
  std::int32_t overflow = 0;
  /// not applied: the last tensor of the model whose gradient is not finite, usually the first that
  /// backward reached; the number of tensors stands for running statistics. -1: none
  std::int32_t nonfinite_tensor = -1;
};

/// The numbers of a rule that are the same for all tensors. A kernel reads those of its rule.
struct RuleNumbers {
  bool nesterov = false;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
};

/// Flat buffers and chunk list of an update, all in memory that the kernel can read.
struct Update {
  float *weight = nullptr, *gradient = nullptr;
  /// state of the rule, in the order in which it names its slots
  float* slots[max_slots] = {};
  /// = the updated weights in the types and at the offsets of the chunks; null: no working copy
  std::byte* working_weights = nullptr;
  const FlatChunk* chunks = nullptr;
  std::int64_t chunk_count = 0;
  const TensorRates* rates = nullptr;
  const StepDecision* decision = nullptr;
  /// Elements of the gradient are clipped to [-limit, limit] before they are multiplied by
  /// StepDecision::gradient_factor. Values that are not finite, and running statistics, are not
  /// clipped.
  float gradient_limit = unlimited;
};

/// Enqueues one pass of a rule over the chunks. A pass of the usual kind updates weights, running
/// statistics, slots and working weights. Formulas: docs/reference/numerics.md.
using UpdateKernel = void(const Stream&, const RuleNumbers&, const Update&);

UpdateKernel update_sgd;    ///< slots: momentum, or null without
UpdateKernel update_lars;   ///< slots: momentum
UpdateKernel update_adamw;  ///< slots: first and second moment
/// First pass of LAMB: gradient = direction of the step (running statistics unchanged); the slots,
/// the moments, are updated.
UpdateKernel lamb_direction;
/// Second pass of LAMB: weight -= rate * trust_ratio * gradient. Ignores clipping and
/// gradient_factor, which the direction includes.
UpdateKernel update_lamb;

/// First pass of Muon: gradient = the average of the gradients, or with Nesterov's form a point
/// between it and the gradient (running statistics unchanged); slots: the average.
UpdateKernel muon_direction;
/// Second pass of Muon: weight decay, then weight -= rate * trust_ratio * gradient. Ignores
/// clipping and gradient_factor, as update_lamb.
UpdateKernel update_muon;

/// Exponential moving average: slots[0] += take * (weight - slots[0]) in all chunks, running
/// statistics included. Does not read gradient, slots[1] and rates.
void update_ema(const Stream&, float take, const Update&);

}  // namespace trireme::kernels
