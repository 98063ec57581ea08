// SPDX-License-Identifier: Apache-2.0
//
// Packs this rank's status of a step, and reads the sum of all ranks' statuses. Called by
// src/ops/update/step_status.cpp; train/step/status_exchange.cpp adds the statuses in between.
// Plan: one thread per column of the records (loss, count, top1, top5), each over some hundred
// records at most. Loads are independent of each other; additions follow the tree.

#include "trireme/kernels/update/step_status.hpp"

#include <limits>

#include "kernels/space/launch.hpp"
#include "trireme/base/tree.hpp"

namespace trireme::kernels {
namespace {

const std::string pack_label = "trireme/kernels/pack_status";
const std::string read_label = "trireme/kernels/read_status";

// A constant: device code may not call a function of the host.
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

constexpr int columns = sizeof(SampleSums) / sizeof(double);
static_assert(sizeof(SampleSums) == columns * sizeof(double) &&
              sizeof(StepStatus) == (columns + 1 + num_status_flags) * sizeof(double));

/// Returns the sum of the values at first, first + stride, ... in the order of the tree
/// (base/tree.hpp).
KOKKOS_INLINE_FUNCTION double sum_by_tree(const double* first, std::int64_t stride,
                                          std::int64_t count) {
  // More levels than any memory could hold records for.
  constexpr int batch = 8, max_depth = 48;
  const TreeWalk walk(count);
  double stack[max_depth];
  int top = 0;
  for (std::int64_t begin = 0; begin < count; begin += batch) {
    double value[batch];
    for (int k = 0; k < batch; ++k) value[k] = begin + k < count ? first[(begin + k) * stride] : 0;
    for (int k = 0; k < batch && begin + k < count; ++k) {
      stack[top++] = value[k];
      for (int merges = walk.merge_count(begin + k); merges > 0; --merges, --top)
        stack[top - 2] += stack[top - 1];
    }
  }
  return count > 0 ? stack[0] : 0;
}

struct PackStatusColumn {
  PackStatusArgs args;

  KOKKOS_FUNCTION void operator()(std::int64_t column) const {
    double* const sums = reinterpret_cast<double*>(&args.status->sums);
    if (column < columns) {
      sums[column] =
          sum_by_tree(reinterpret_cast<const double*>(args.sums) + column, columns, args.count);
    } else {
      args.status->gradient_squares = args.gradient_squares == nullptr ? 0 : *args.gradient_squares;
      for (int flag = 0; flag < num_status_flags; ++flag)
        args.status->raised[flag] = (args.stop_requests >> flag & 1) != 0 ? 1 : 0;
    }
  }
};

struct ReadStatus {
  ReadStatusArgs args;

  KOKKOS_FUNCTION void operator()(std::int64_t) const {
    StepTotals totals;
    totals.sums = args.status->sums;
    totals.gradient_squares = args.status->gradient_squares;
    for (int flag = 0; flag < num_status_flags; ++flag)
      if (args.status->raised[flag] > 0) totals.stop_requests |= std::uint64_t{1} << flag;
    if ((totals.stop_requests & args.invalid) != 0) totals.sums.loss = not_a_number;
    *args.totals = totals;
  }
};

}  // namespace

void pack_status(const Stream& stream, const PackStatusArgs& args) {
  dispatch(stream, [=](const auto& space) {
    for_each_index(space, pack_label, columns + 1, PackStatusColumn{args});
  });
}

void read_status(const Stream& stream, const ReadStatusArgs& args) {
  dispatch(stream,
           [=](const auto& space) { for_each_index(space, read_label, 1, ReadStatus{args}); });
}

}  // namespace trireme::kernels
