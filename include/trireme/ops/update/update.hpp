// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plain structs that the kernels read: rows, chunks, rates, rules.
#include "trireme/kernels/update/update.hpp"
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

/// The buffers and tables of an update, for one window of the flat buffers. All tensors but
/// `working` are float32 [elements of the window].
struct WindowState {
  Tensor weight, gradient;
  /// State of the rule; undefined where it has none.
  Tensor slots[kernels::max_slots] = {};
  /// The copy of the weights that ops read, as bytes of all ranks; undefined where ops read
  /// `weight` itself.
  Tensor working;
  /// Elements of the window, and bytes of `working`, that the chunks cover. Used for counting only.
  std::int64_t elements = 0, working_bytes = 0;
  /// Elements of the gradient are clipped to [-limit, limit], as the update reads them. Values that
  /// are not finite, and running statistics, are not clipped.
  float gradient_limit = unlimited;
  const FlatChunk* chunks = nullptr;
  std::int64_t chunk_count = 0;
  const TensorRates* rates = nullptr;
  const StepDecision* decision = nullptr;
};

using kernels::RuleNumbers;

/// A pass of an update rule: a kernel, and its name as an op.
struct UpdatePass {
  Op op = {};
  kernels::UpdateKernel* kernel = nullptr;
  bool writes_weights = true;   ///< false: it writes the direction of the step over the gradient
  int slots = 0;                ///< that it reads and writes
  bool slots_optional = false;  ///< it may have none
};

/// Enqueues one pass over a window (formulas: docs/reference/numerics.md). The kernels read the
/// decision and change nothing if the step is skipped.
void update(Context&, const UpdatePass&, const RuleNumbers&, const WindowState&);

/// Enqueues the exponential moving average of the weights of a window after their update: average
/// += (1 - decay) * (weight - average), running statistics included. Changes nothing if the step is
/// skipped. 1 - decay is computed in double, the rest in float32. The bits of an element depend on
/// its own history only.
void update_ema(Context&, double decay, const WindowState&, const Tensor& average);

}  // namespace trireme::ops
