#pragma once

#include "trireme/kernels/update.hpp"  // rows, chunks, rates, rules: plain structs that the kernels read
#include "trireme/ops/context.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {

// Rows, sums, chunks, rates and the judgement lie where the context's kernels run
// (parallel/device_table.hpp).

using kernels::FlatRow;

/// sums[r] (double) = sum of squares of row r of `flat` (float32), each row summed in one fixed
/// order: the same bits wherever the row is.
void row_square_sums(Context&, const Tensor& flat, const FlatRow* rows, std::int64_t row_count,
                     double* sums);

using kernels::FlatChunk;
using kernels::StepDecision;
using kernels::TensorRates;

/// The flat buffers that an update reads and writes; `working` (bytes; of all ranks, where shards
/// are updated) is undefined where ops read the weights themselves.
struct FlatState {
  Tensor weight, gradient, slot1, slot2, working;
  std::int64_t working_bytes = 0;  ///< of `working` that the chunks name
};

using kernels::AdamWRule;
using kernels::LambRule;
using kernels::LarsRule;
using kernels::SgdRule;

/// One pass over the flat buffers: decay, slots, master weights and the working copy. Formulas:
/// docs/contract section 7.
void update_sgd(Context&, const SgdRule&, const FlatState&, const FlatChunk* chunks,
                std::int64_t chunk_count, const TensorRates* rates, const StepDecision* decision);
void update_lars(Context&, const LarsRule&, const FlatState&, const FlatChunk* chunks,
                 std::int64_t chunk_count, const TensorRates* rates, const StepDecision* decision);
void update_adamw(Context&, const AdamWRule&, const FlatState&, const FlatChunk* chunks,
                  std::int64_t chunk_count, const TensorRates* rates, const StepDecision* decision);
/// lamb's first pass: gradient = the direction of the step, decay included; the slots move. Weights
/// and statistics do not.
void lamb_direction(Context&, const LambRule&, const FlatState&, const FlatChunk* chunks,
                    std::int64_t chunk_count, const TensorRates* rates,
                    const StepDecision* decision);
/// Its second: weight -= rate * trust * direction, which stands in the gradient (gradient_factor is
/// in it already); statistics; the working copy.
void update_lamb(Context&, const FlatState&, const FlatChunk* chunks, std::int64_t chunk_count,
                 const TensorRates* rates, const StepDecision* decision);

/// After an update, where it was applied: average += (1 - decay) * (weight - average), weights and
/// statistics alike; in float32 but for 1 - decay, which is taken in double. An element's bits are
/// a function of its own history.
void update_ema(Context&, double decay, const Tensor& weight, const Tensor& average,
                const FlatChunk* chunks, std::int64_t chunk_count, const StepDecision* decision);

}  // namespace trireme::ops
