#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// One row of a flat buffer: the atom of every norm, bucket and shard.
struct FlatRow {
  std::int64_t offset = 0, elements = 0;
  std::int32_t tensor = 0;  ///< its tensor's index in the layout
};

/// sums[r] (double) = sum of squares of row r of `flat` (float32), each row summed in one fixed order: the same bits wherever the row is.
void row_square_sums(Context&, const Tensor& flat, const FlatRow* rows, std::int64_t row_count, double* sums);

/// A piece of a flat buffer that lies in one tensor: what one iteration of an update kernel takes.
struct FlatChunk {
  std::int64_t offset = 0;
  std::int32_t elements = 0, tensor = 0;
};

/// What a tensor's update is made with this step; the arrays are indexed by tensor.
struct TensorRates {
  float rate = 0;           ///< learning rate; lars: the global rate; statistics: the running statistics' momentum (0.1)
  float weight_decay = 0;
  float trust = 1;          ///< lars: the local rate; lamb: the trust ratio
  std::int32_t statistic = 0;  ///< 1: a running statistic, w = (1 - rate) * w + rate * g, no slot
};

/// Decided where the data is, from the reduced loss, norm and flags; read by every update kernel (design: "judge").
struct Judgement {
  std::int32_t apply = 1;       ///< 0: this step changes nothing
  float gradient_factor = 1;    ///< clip factor / loss scale
  float bias_correction1 = 1, bias_correction2 = 1;  ///< adamw, lamb: 1 - beta^t of the update being made
};

/// The flat buffers that an update reads and writes; `compute` (bfloat16) is undefined where compute is float32.
struct FlatState {
  Tensor weight, gradient, slot1, slot2, compute;
};

struct SgdRule { float momentum = 0; bool nesterov = false; };
struct LarsRule { float momentum = 0; };
struct AdamWRule { float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f; };

/// One pass over the flat buffers: decay, slots, master weights and the copy in compute precision. Formulas: docs/contract section 7.
void update_sgd(Context&, const SgdRule&, const FlatState&, const FlatChunk* chunks, std::int64_t chunk_count, const TensorRates* rates, const Judgement* judgement);
void update_lars(Context&, const LarsRule&, const FlatState&, const FlatChunk* chunks, std::int64_t chunk_count, const TensorRates* rates, const Judgement* judgement);
void update_adamw(Context&, const AdamWRule&, const FlatState&, const FlatChunk* chunks, std::int64_t chunk_count, const TensorRates* rates, const Judgement* judgement);

}  // namespace trireme::ops
