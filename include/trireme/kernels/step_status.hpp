#pragma once

#include <cstdint>

#include "trireme/base/philox.hpp"  // TRIREME_FUNCTION
#include "trireme/device/device.hpp"

// What all ranks tell each other once a step, made and joined where the losses are.

namespace trireme::kernels {

/// Sums over samples (tokens): what losses and metrics are made of.
struct SampleSums {
  double loss = 0, count = 0, top1 = 0, top5 = 0;
  friend TRIREME_FUNCTION SampleSums operator+(const SampleSums& a, const SampleSums& b) {
    return {a.loss + b.loss, a.count + b.count, a.top1 + b.top1, a.top5 + b.top5};
  }
};

/// What a rank tells all others.
struct StepStatus {
  SampleSums sums;  ///< of its micro-batches; zeros but at the last stage
  std::uint64_t stop_requests = 0;
  double busy_seconds = 0;  ///< of a step, without waiting for other ranks
};

/// *message = the sum of `sums` [count] in the order of the tree (base/tree.hpp), and what the host
/// adds.
struct PackStatusArgs {
  const SampleSums* sums = nullptr;
  std::int64_t count = 0;
  std::uint64_t stop_requests = 0;
  double busy_seconds = 0;
  StepStatus* status = nullptr;
};
void pack_status(const Stream&, const PackStatusArgs&);

/// *sums = those of the messages first, first + step, ... (`count` of them) in the order of the
/// tree.
struct ReduceStatusArgs {
  const StepStatus* statuses = nullptr;
  std::int64_t first = 0, step = 1, count = 0;
  SampleSums* sums = nullptr;
};
void reduce_status(const Stream&, const ReduceStatusArgs&);

}  // namespace trireme::kernels
