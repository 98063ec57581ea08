// Packs this rank's status of a step, and sums the statuses of all ranks. Called by
// src/ops/step_status.cpp; train/status_exchange.cpp transfers the statuses in between.
// Plan: one thread per column of the records (loss, count, top1, top5), each over some hundred
// records at most. Loads are independent of each other; additions follow the tree.

#include "trireme/kernels/step_status.hpp"

#include <limits>

#include "launch.hpp"
#include "trireme/base/tree.hpp"

namespace trireme::kernels {
namespace {

const std::string pack_label = "trireme/kernels/tell";
const std::string reduce_label = "trireme/kernels/join";

constexpr int columns = sizeof(SampleSums) / sizeof(double);
static_assert(sizeof(SampleSums) == columns * sizeof(double) &&
              sizeof(StepStatus) % sizeof(double) == 0);

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
      args.status->stop_requests = args.stop_requests;
      args.status->busy_seconds = args.busy_seconds;
      args.status->gradient_squares = args.gradient_squares == nullptr ? 0 : *args.gradient_squares;
    }
  }
};

/// Returns all stop requests of `ranks` statuses.
KOKKOS_INLINE_FUNCTION std::uint64_t all_requests(const StepStatus* statuses, std::int64_t ranks) {
  constexpr int batch = 8;
  std::uint64_t all = 0;
  for (std::int64_t begin = 0; begin < ranks; begin += batch) {
    for (int k = 0; k < batch; ++k)
      all |= begin + k < ranks ? statuses[begin + k].stop_requests : 0;
  }
  return all;
}

struct ReduceStatusColumn {
  ReduceStatusArgs args;

  KOKKOS_FUNCTION void operator()(std::int64_t column) const {
    constexpr std::int64_t stride = sizeof(StepStatus) / sizeof(double);
    const double* const first =
        reinterpret_cast<const double*>(&args.statuses[args.first].sums) + column;
    double sum = sum_by_tree(first, args.step * stride, args.count);
    // A constant: device code may not call a function of the host.
    constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
    if (column == 0 && (all_requests(args.statuses, args.ranks) & args.invalid) != 0)
      sum = not_a_number;
    reinterpret_cast<double*>(args.sums)[column] = sum;
  }
};

}  // namespace

void pack_status(const Stream& stream, const PackStatusArgs& args) {
  dispatch(stream, [=](const auto& space) {
    for_each_index(space, pack_label, columns + 1, PackStatusColumn{args});
  });
}

void reduce_status(const Stream& stream, const ReduceStatusArgs& args) {
  dispatch(stream, [=](const auto& space) {
    for_each_index(space, reduce_label, columns, ReduceStatusColumn{args});
  });
}

}  // namespace trireme::kernels
