#pragma once

#include "trireme/kernels/update.hpp"  // rows, chunks, rates, rules: plain structs that the kernels read
#include "trireme/ops/context.hpp"

namespace trireme::ops {

using kernels::FlatRow;

/// sums[r] (double) = sum of squares of row r of `flat` (float32), each row summed in one fixed order: the same bits wherever the row is.
void row_square_sums(Context&, const Tensor& flat, const FlatRow* rows, std::int64_t row_count, double* sums);

using kernels::FlatChunk;
using kernels::Judgement;
using kernels::TensorRates;

/// The flat buffers that an update reads and writes; `compute` (bfloat16) is undefined where compute is float32.
struct FlatState {
  Tensor weight, gradient, slot1, slot2, compute;
};

using kernels::AdamWRule;
using kernels::LarsRule;
using kernels::SgdRule;

/// One pass over the flat buffers: decay, slots, master weights and the copy in compute precision. Formulas: docs/contract section 7.
void update_sgd(Context&, const SgdRule&, const FlatState&, const FlatChunk* chunks, std::int64_t chunk_count, const TensorRates* rates, const Judgement* judgement);
void update_lars(Context&, const LarsRule&, const FlatState&, const FlatChunk* chunks, std::int64_t chunk_count, const TensorRates* rates, const Judgement* judgement);
void update_adamw(Context&, const AdamWRule&, const FlatState&, const FlatChunk* chunks, std::int64_t chunk_count, const TensorRates* rates, const Judgement* judgement);

}  // namespace trireme::ops
