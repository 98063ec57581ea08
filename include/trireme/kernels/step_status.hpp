#pragma once

#include <cstdint>

#include "trireme/base/philox.hpp"  // TRIREME_FUNCTION
#include "trireme/device/device.hpp"

// The status that all ranks exchange once a step: packed and reduced where the losses are stored,
// so that the host does not wait for them.

namespace trireme::kernels {

/// Sums over samples (tokens) from which losses and accuracies are computed.
struct SampleSums {
  double loss = 0, count = 0, top1 = 0, top5 = 0;
  friend TRIREME_FUNCTION SampleSums operator+(const SampleSums& a, const SampleSums& b) {
    return {a.loss + b.loss, a.count + b.count, a.top1 + b.top1, a.top5 + b.top5};
  }
};

/// Status of one rank for one step. train/status_exchange.hpp sends it to all ranks.
struct StepStatus {
  /// over the rank's micro-batches; zeros except at the last pipeline stage
  SampleSums sums;
  /// bits of the stop requests that this rank raises
  std::uint64_t stop_requests = 0;
  /// seconds of the step without waiting for other ranks
  double busy_seconds = 0;
  /// measured steps: the sum of the squared norms of the gradients of the rank's micro-batches,
  /// over the weights that it counts; else 0
  double gradient_squares = 0;
};

/// Arguments of pack_status(): *status = the sum of `sums` [count] in the order of the tree
/// (base/tree.hpp), the host's two values, and *gradient_squares (null: 0).
struct PackStatusArgs {
  const SampleSums* sums = nullptr;
  std::int64_t count = 0;
  std::uint64_t stop_requests = 0;
  double busy_seconds = 0;
  const double* gradient_squares = nullptr;
  StepStatus* status = nullptr;
};
/// Enqueues the packing of this rank's status. One thread adds each of the four sums; the launch
/// reads count * 32 bytes.
void pack_status(const Stream&, const PackStatusArgs&);

/// Arguments of reduce_status(): *sums = the sum over the statuses first, first + step, ...
/// (`count` of them) in the order of the tree. The loss is NaN if one of the first `ranks` statuses
/// has a bit of `invalid` in its stop requests: then no rank applies the step.
/// The order makes the loss of a step independent of the number of replicas, if that is a power of
/// two.
struct ReduceStatusArgs {
  const StepStatus* statuses = nullptr;
  std::int64_t first = 0, step = 1, count = 0;
  SampleSums* sums = nullptr;
  std::int64_t ranks = 0;
  std::uint64_t invalid = 0;
};
/// Enqueues the sum over the ranks' statuses.
void reduce_status(const Stream&, const ReduceStatusArgs&);

}  // namespace trireme::kernels
