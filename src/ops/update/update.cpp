// SPDX-License-Identifier: Apache-2.0
//
// Optimizer updates on flat buffers: checks that buffers and tables are readable on the device,
// counts bytes and launches one kernel each. Called by optim's Optimizer, window by window.

#include "trireme/ops/update/update.hpp"

#include <algorithm>

#include "ops/dispatch/raw_pointer.hpp"

namespace trireme::ops {
namespace {

constexpr auto float_bytes = static_cast<double>(sizeof(float));

/// Returns the kernels' argument struct. Expects all pointers to be readable where kernels run.
kernels::Update arguments(const Context& context, const WindowState& state) {
  TRIREME_EXPECT(state.chunk_count == 0 ||
                 (readable(context, state.weight.data) && readable(context, state.chunks) &&
                  readable(context, state.decision)));
  kernels::Update args;
  args.weight = state.weight.as<float>();
  args.gradient = state.gradient.as<float>();
  args.working_weights =
      state.working.defined() ? static_cast<std::byte*>(state.working.data) : nullptr;
  args.chunks = state.chunks;
  args.chunk_count = state.chunk_count;
  args.rates = state.rates;
  args.decision = state.decision;
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

void update(Context& context, const UpdatePass& pass, const RuleNumbers& numbers,
            const WindowState& state) {
  int slots = 0;
  while (slots < pass.slots && state.slots[slots].defined()) ++slots;
  [[maybe_unused]] const auto fits = [&](const Tensor& flat) {
    return !flat.defined() ||
           (flat.dtype == DType::float32 && flat.elements() == state.weight.elements());
  };
  TRIREME_EXPECT(state.gradient.defined() && fits(state.gradient) &&
                 std::ranges::all_of(state.slots, fits));
  TRIREME_EXPECT(slots == pass.slots || (slots == 0 && pass.slots_optional));
  // Weights and gradients are read, one of them is written; slots are read and written.
  const double flat_bytes = float_bytes * static_cast<double>(state.elements) * (3 + 2 * slots);
  if (context.counts_only(
          pass.op, flat_bytes + static_cast<double>(pass.writes_weights ? state.working_bytes : 0)))
    return;
  kernels::Update args = arguments(context, state);
  TRIREME_EXPECT(args.chunk_count == 0 || readable(context, args.rates));
  for (int slot = 0; slot < slots; ++slot) args.slots[slot] = state.slots[slot].as<float>();
  pass.kernel(context.stream(), numbers, args);
}

void update_ema(Context& context, double decay, const WindowState& state, const Tensor& average) {
  TRIREME_EXPECT(state.weight.dtype == DType::float32 && average.dtype == DType::float32 &&
                 average.elements() == state.weight.elements());
  if (context.counts_only("update_ema", float_bytes * static_cast<double>(state.elements) * 3))
    return;
  // The kernel reads the weights and updates the first slot, here the average.
  kernels::Update args = arguments(context, state);
  TRIREME_EXPECT(args.chunk_count == 0 || readable(context, average.data));
  args.slots[0] = average.as<float>();
  kernels::update_ema(context.stream(), static_cast<float>(1 - decay), args);
}

}  // namespace trireme::ops
