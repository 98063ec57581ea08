// SPDX-License-Identifier: Apache-2.0
//
// Optimizer updates on flat buffers: checks that buffers and tables are readable on the device,
// counts bytes and launches one kernel each. Called by optim's Optimizer, window by window.

#include "trireme/ops/update.hpp"

#include "raw_pointer.hpp"

namespace trireme::ops {
namespace {

void expect_flat([[maybe_unused]] const FlatState& state, [[maybe_unused]] const Tensor& slot) {
  TRIREME_EXPECT(slot.dtype == DType::float32 && slot.elements() == state.weight.elements());
}

/// Counts an update: weights and slots are read and written, gradients are read, the working copy
/// is written.
void count(Context& context, const Op& op, const FlatState& state, int slots) {
  context.count(op, static_cast<double>(state.weight.bytes()) * (3 + 2 * slots) +
                        static_cast<double>(state.working_bytes));
}

/// Returns the kernels' argument struct. Expects all pointers to be readable where kernels run.
kernels::Update arguments(const Context& context, const FlatState& state, const FlatChunk* chunks,
                          std::int64_t chunk_count, const TensorRates* rates,
                          const StepDecision* decision) {
  TRIREME_EXPECT(chunk_count == 0 ||
                 (readable(context, state.weight.data) && readable(context, chunks) &&
                  readable(context, rates) && readable(context, decision)));
  kernels::Update args;
  args.weight = state.weight.as<float>();
  args.gradient = state.gradient.as<float>();
  args.slot1 = state.slot1.defined() ? state.slot1.as<float>() : nullptr;
  args.slot2 = state.slot2.defined() ? state.slot2.as<float>() : nullptr;
  args.working_weights =
      state.working.defined() ? static_cast<std::byte*>(state.working.data) : nullptr;
  args.chunks = chunks;
  args.chunk_count = chunk_count;
  args.rates = rates;
  args.decision = decision;
  args.gradient_limit = state.gradient_limit;
  return args;
}

}  // namespace

void row_square_sums(Context& context, const Tensor& flat, const FlatRow* rows,
                     std::int64_t row_count, double* sums, float limit) {
  TRIREME_EXPECT(flat.dtype == DType::float32 && limit >= 0);
  if (context.counts_only("row_square_sums",
                          static_cast<double>(flat.bytes()) + 8.0 * static_cast<double>(row_count)))
    return;
  TRIREME_EXPECT(row_count == 0 || (readable(context, flat.data) && readable(context, rows) &&
                                    readable(context, sums)));
  kernels::row_square_sums(context.stream(), flat.as<float>(), rows, row_count, sums, limit);
}

void update_sgd(Context& context, const SgdRule& rule, const FlatState& state,
                const FlatChunk* chunks, std::int64_t chunk_count, const TensorRates* rates,
                const StepDecision* decision) {
  expect_flat(state, state.gradient);
  count(context, "update_sgd", state, state.slot1.defined() ? 1 : 0);
  if (context.meta()) return;
  kernels::update_sgd(context.stream(), rule,
                      arguments(context, state, chunks, chunk_count, rates, decision));
}

void update_lars(Context& context, const FlatState& state, const FlatChunk* chunks,
                 std::int64_t chunk_count, const TensorRates* rates, const StepDecision* decision) {
  expect_flat(state, state.gradient);
  expect_flat(state, state.slot1);
  count(context, "update_lars", state, 1);
  if (context.meta()) return;
  kernels::update_lars(context.stream(),
                       arguments(context, state, chunks, chunk_count, rates, decision));
}

void update_adamw(Context& context, const AdamWRule& rule, const FlatState& state,
                  const FlatChunk* chunks, std::int64_t chunk_count, const TensorRates* rates,
                  const StepDecision* decision) {
  expect_flat(state, state.gradient);
  expect_flat(state, state.slot1);
  expect_flat(state, state.slot2);
  count(context, "update_adamw", state, 2);
  if (context.meta()) return;
  kernels::update_adamw(context.stream(), rule,
                        arguments(context, state, chunks, chunk_count, rates, decision));
}

void lamb_direction(Context& context, const LambRule& rule, const FlatState& state,
                    const FlatChunk* chunks, std::int64_t chunk_count, const TensorRates* rates,
                    const StepDecision* decision) {
  expect_flat(state, state.gradient);
  expect_flat(state, state.slot1);
  expect_flat(state, state.slot2);
  // Weights are read; gradients and two slots are read and written.
  if (context.counts_only("lamb_direction", static_cast<double>(state.weight.bytes()) * 7)) return;
  kernels::lamb_direction(context.stream(), rule,
                          arguments(context, state, chunks, chunk_count, rates, decision));
}

void update_lamb(Context& context, const FlatState& state, const FlatChunk* chunks,
                 std::int64_t chunk_count, const TensorRates* rates, const StepDecision* decision) {
  expect_flat(state, state.gradient);
  count(context, "update_lamb", state, 0);
  if (context.meta()) return;
  kernels::update_lamb(context.stream(),
                       arguments(context, state, chunks, chunk_count, rates, decision));
}

void update_ema(Context& context, double decay, const Tensor& weight, const Tensor& average,
                const FlatChunk* chunks, std::int64_t chunk_count, const StepDecision* decision) {
  TRIREME_EXPECT(weight.dtype == DType::float32 && average.dtype == DType::float32 &&
                 average.elements() == weight.elements());
  if (context.counts_only("update_ema", static_cast<double>(weight.bytes()) * 3)) return;
  TRIREME_EXPECT(chunk_count == 0 ||
                 (readable(context, weight.data) && readable(context, average.data) &&
                  readable(context, chunks) && readable(context, decision)));
  // The EMA kernel reads `weight` and updates `slot1`, here the average.
  kernels::Update args;
  args.weight = weight.as<float>();
  args.slot1 = average.as<float>();
  args.chunks = chunks;
  args.chunk_count = chunk_count;
  args.decision = decision;
  kernels::update_ema(context.stream(), static_cast<float>(1 - decay), args);
}

}  // namespace trireme::ops
