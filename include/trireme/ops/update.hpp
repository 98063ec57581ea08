// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plain structs that the kernels read: rows, chunks, rates, rules.
#include "trireme/kernels/update.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {

// Update kernels of the optimizers on flat buffers, called by optim's Optimizer. Rows, sums,
// chunks, rates and the step decision are in memory that the context's kernels can read
// (parallel/device_table.hpp). The functions enqueue a kernel and do not wait.

using kernels::FlatRow;
using kernels::unlimited;

/// Enqueues sums[r] (double) = the sum of squares of row r of `flat` (float32), whose elements are
/// first clipped to [-limit, limit]. Each row is summed in one fixed order: its bits do not depend
/// on the rank that owns it.
void row_square_sums(Context&, const Tensor& flat, const FlatRow* rows, std::int64_t row_count,
                     double* sums, float limit = unlimited);

using kernels::FlatChunk;
using kernels::StepDecision;
using kernels::TensorRates;

/// The flat buffers that an update reads and writes. `weight`, `gradient` and the slots are float32
/// [elements that this rank owns]. `slot1` and `slot2` are the optimizer's state (momentum; exp_avg
/// and exp_avg_sq), undefined if the rule has none. `working` is the copy of the weights that ops
/// read, as bytes of all ranks; undefined where ops read `weight` itself.
struct FlatState {
  Tensor weight, gradient, slot1, slot2, working;
  /// Bytes of `working` that the chunks cover. Used for counting only.
  std::int64_t working_bytes = 0;
  /// Elements of the gradient are clipped to [-limit, limit], as the update reads them. Values that
  /// are not finite, and running statistics, are not clipped.
  float gradient_limit = unlimited;
};

using kernels::AdamWRule;
using kernels::LambRule;
using kernels::SgdRule;

/// Enqueues one pass over the flat buffers: weight decay, slots, master weights and working copy
/// (formulas: docs/reference/numerics.md). The kernels read the decision and change nothing if the
/// step is skipped.
void update_sgd(Context&, const SgdRule&, const FlatState&, const FlatChunk* chunks,
                std::int64_t chunk_count, const TensorRates* rates, const StepDecision* decision);
void update_lars(Context&, const FlatState&, const FlatChunk* chunks, std::int64_t chunk_count,
                 const TensorRates* rates, const StepDecision* decision);
void update_adamw(Context&, const AdamWRule&, const FlatState&, const FlatChunk* chunks,
                  std::int64_t chunk_count, const TensorRates* rates, const StepDecision* decision);
/// Enqueues LAMB's first pass: gradient = the direction of the step, weight decay included; the
/// slots are updated. Weights and running statistics do not change.
void lamb_direction(Context&, const LambRule&, const FlatState&, const FlatChunk* chunks,
                    std::int64_t chunk_count, const TensorRates* rates,
                    const StepDecision* decision);
/// Enqueues LAMB's second pass: weight -= rate * trust * direction, running statistics, working
/// copy. The gradient buffer holds the direction, which already includes the gradient factor.
void update_lamb(Context&, const FlatState&, const FlatChunk* chunks, std::int64_t chunk_count,
                 const TensorRates* rates, const StepDecision* decision);

/// Enqueues the exponential moving average after an update: average += (1 - decay) * (weight -
/// average), running statistics included. Changes nothing if the step is skipped. 1 - decay is
/// computed in double, the rest in float32. The bits of an element depend on its own history only.
void update_ema(Context&, double decay, const Tensor& weight, const Tensor& average,
                const FlatChunk* chunks, std::int64_t chunk_count, const StepDecision* decision);

}  // namespace trireme::ops
