#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// One row of a flat buffer: the atom of every norm, bucket and shard.
struct FlatRow {
  std::int64_t offset = 0, elements = 0;
  std::int32_t tensor = 0;  ///< its tensor's index in the layout
};

/// sums[r] = sum of squares of row r of `flat`, in one fixed order wherever the row lies.
void row_square_sums(const Stream&, const float* flat, const FlatRow* rows, std::int64_t row_count,
                     double* sums);

/// A piece of a flat buffer that lies in one tensor: what one iteration of an update kernel takes.
struct FlatChunk {
  std::int64_t offset = 0;
  std::int32_t elements = 0, tensor = 0;
  ElementType working_type = ElementType::float32;  ///< of its working weights
  std::int64_t working_offset = 0;  ///< where they lie: bytes from the start of the working weights
};

/// What a tensor's update is made with this step; the arrays are indexed by tensor.
struct TensorRates {
  float rate = 0;  ///< learning rate; lars: the global rate; statistics: the running statistics'
                   ///< momentum (0.1)
  float weight_decay = 0;
  float trust_ratio = 1;  ///< lars: the local rate; lamb: the trust ratio
  std::int32_t is_statistic =
      0;  ///< 1: a running statistic, w = (1 - rate) * w + rate * g, no slot
};

/// Decided where the data is (kernels/judge.hpp); read by every update kernel.
struct StepDecision {
  std::int32_t apply = 1;     ///< 0: this step changes nothing
  float gradient_factor = 1;  ///< clip factor / loss scale
  float bias_correction1 = 1,
        bias_correction2 = 1;  ///< adamw, lamb: 1 - beta^t of the update being made
  double gradient_norm = 0;    ///< of the gradient, over all weights of the model, before clipping
  double gradient_factor_double = 1;  ///< gradient_factor in double
  std::int64_t update_count = 0;      ///< applied so far, this one with them
  double loss_scale = 1;              ///< for the next gradient that is seeded
  std::int64_t good_steps = 0;        ///< applied since the scale last moved
  std::int32_t overflow = 0;          ///< 1: not applied because the scale was too large
};

struct SgdRule {
  float momentum = 0;
  bool nesterov = false;
};
struct LarsRule {
  float momentum = 0;
};
struct AdamWRule {
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
};

struct LambRule {
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
};

/// The flat buffers of an update and the lists it goes by; all of them where the kernel runs.
struct Update {
  float *weight = nullptr, *gradient = nullptr;
  float *slot1 = nullptr, *slot2 = nullptr;
  std::byte* working_weights = nullptr;  ///< = the weights as ops read them, in the types and at
                                         ///< the places that the chunks say; null: no copy
  const FlatChunk* chunks = nullptr;
  std::int64_t chunk_count = 0;
  const TensorRates* rates = nullptr;
  const StepDecision* decision = nullptr;
};
void update_sgd(const Stream&, const SgdRule&, const Update&);
void update_lars(const Stream&, const LarsRule&, const Update&);
void update_adamw(const Stream&, const AdamWRule&, const Update&);
/// lamb in two passes, between which the norms of weights and directions are taken. First: gradient
/// = the direction of the step (statistics: untouched), slots move. Then: weight -= rate * trust *
/// gradient (gradient_factor is in it already).
void lamb_direction(const Stream&, const LambRule&, const Update&);
void update_lamb(const Stream&, const Update&);
/// Exponential moving average: slot1 += take * (weight - slot1) in all chunks, statistics too;
/// gradient, slot2 and rates are not read.
void update_ema(const Stream&, float take, const Update&);

}  // namespace trireme::kernels
