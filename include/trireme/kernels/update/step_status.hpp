// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/base/philox.hpp"  // TRIREME_FUNCTION
#include "trireme/device/device.hpp"

// The status that the ranks add once a step: packed and read where the losses are stored, so that
// the host does not wait for them.

namespace trireme::kernels {

/// Sums over samples (tokens) from which losses and accuracies are computed.
struct SampleSums {
  double loss = 0, count = 0, top1 = 0, top5 = 0;
  friend TRIREME_FUNCTION SampleSums operator+(const SampleSums& a, const SampleSums& b) {
    return {a.loss + b.loss, a.count + b.count, a.top1 + b.top1, a.top5 + b.top5};
  }
};

/// Flags that a rank can raise in a step: bits 0 to 7 of its stop requests.
constexpr int num_status_flags = 8;

/// Status of a step. Its numbers are added over all ranks (train/step/status_exchange.hpp), so a
/// sum of statuses is a status.
struct StepStatus {
  /// Over micro-batches. A rank whose samples are counted elsewhere, or not at all, has zeros.
  SampleSums sums;
  /// Measured steps: the squared norms of the gradients of micro-batches, over the weights that
  /// each rank counts; else 0.
  double gradient_squares = 0;
  /// The number of ranks that raise each flag.
  double raised[num_status_flags] = {};
};
/// The numbers of a status.
constexpr std::int64_t status_values = sizeof(StepStatus) / sizeof(double);

/// Arguments of pack_status(): *status = the sum of `sums` [count] in the order of the tree
/// (base/tree.hpp), the flags in `stop_requests`, and *gradient_squares (null: 0).
struct PackStatusArgs {
  const SampleSums* sums = nullptr;
  std::int64_t count = 0;
  std::uint64_t stop_requests = 0;
  const double* gradient_squares = nullptr;
  StepStatus* status = nullptr;
};
/// Enqueues the packing of this rank's status. One thread adds each of the four sums; the launch
/// reads count * 32 bytes.
void pack_status(const Stream&, const PackStatusArgs&);

/// The status of a step over all ranks, as the update and the host read it.
struct StepTotals {
  SampleSums sums;
  double gradient_squares = 0;
  std::uint64_t stop_requests = 0;  ///< Bitwise or over all ranks.
};

/// Arguments of read_status(): *totals = *status, which is the sum over all ranks. The loss is NaN
/// if a rank has raised a flag of `invalid`: then no rank applies the step.
struct ReadStatusArgs {
  const StepStatus* status = nullptr;
  std::uint64_t invalid = 0;
  StepTotals* totals = nullptr;
};
/// Enqueues the conversion, by one thread.
void read_status(const Stream&, const ReadStatusArgs&);

}  // namespace trireme::kernels
