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

/// Per-tensor values of one update; kernels index arrays of them by tensor.
struct TensorRates {
  /// learning rate. LARS: the global rate. Running statistics: their momentum (0.1)
  float rate = 0;
  float weight_decay = 0;
  /// LARS: the local rate; LAMB: the trust ratio
  float trust_ratio = 1;
  /// 1: a running statistic, w = (1 - rate) * w + rate * g; it has no optimizer state
  std::int32_t is_statistic = 0;
  /// SGD and LARS: the decay of the velocity, the same for all tensors of a step
  float momentum = 0;
  /// factor of the learning rate of a step for this tensor
  float rate_ratio = 1;
  /// adamw, lamb: 1 - beta^t, where t counts the updates since the moments of this tensor began
  float bias_correction1 = 1, bias_correction2 = 1;
  /// updates that were applied before the moments of this tensor began
  std::int64_t updates_before = 0;
};

/// Decision about one step. decide_step() (kernels/step_decision.hpp) writes it on the device;
/// every update kernel of the step reads it.
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

/// SGD with momentum, PyTorch's form.
struct SgdRule {
  bool nesterov = false;
};
/// AdamW (Loshchilov and Hutter 2019).
struct AdamWRule {
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
};

/// LAMB (You et al. 2020).
struct LambRule {
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
};

/// Flat buffers and chunk list of an update, all in memory that the kernel can read.
struct Update {
  float *weight = nullptr, *gradient = nullptr;
  /// optimizer state: momentum or first moment, second moment
  float *slot1 = nullptr, *slot2 = nullptr;
  /// = the updated weights in the types and at the offsets of the chunks; null: no working copy
  std::byte* working_weights = nullptr;
  const FlatChunk* chunks = nullptr;
  std::int64_t chunk_count = 0;
  const TensorRates* rates = nullptr;
  const StepDecision* decision = nullptr;
  /// Elements of the gradient are clipped to [-limit, limit] before they are multiplied by
  /// StepDecision::gradient_factor. Values that are not finite, and running statistics, are not
  /// clipped. LAMB clips in lamb_direction() only.
  float gradient_limit = unlimited;
};
/// Enqueue one pass that updates weights, optimizer state and working weights. slot1 may be null
/// for SGD without momentum.
void update_sgd(const Stream&, const SgdRule&, const Update&);
/// LARS (You et al. 2017).
void update_lars(const Stream&, const Update&);
void update_adamw(const Stream&, const AdamWRule&, const Update&);
/// LAMB takes two passes; the norms of weights and directions are computed between them.
/// - lamb_direction(): gradient = direction of the step (running statistics unchanged); the moments
///   are updated.
/// - update_lamb(): weight -= rate * trust_ratio * gradient, which already includes
///   gradient_factor.
void lamb_direction(const Stream&, const LambRule&, const Update&);
void update_lamb(const Stream&, const Update&);
/// Exponential moving average: slot1 += take * (weight - slot1) in all chunks, running statistics
/// included. Does not read gradient, slot2 and rates.
void update_ema(const Stream&, float take, const Update&);

}  // namespace trireme::kernels
