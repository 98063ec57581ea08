// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/device/device.hpp"
#include "trireme/train/step/replica_options.hpp"

namespace trireme::train {

/// The order in which data ranks add gradients and average weights, and the reason for it.
struct SumOrderChoice {
  comm::SumOrder order = comm::SumOrder::library;
  std::string reason;
};

/// Chooses between the tree, whose sums have the same bits at every power of two of replicas, and
/// the all-reduce of the library.
///
/// `target` is the device of the run; an emulated one follows CUDA. `weights`: trained elements of
/// the whole model, so that all layouts choose alike. `replicas`: ranks that add.
SumOrderChoice choose_sum_order(const ReplicaOptions& options, DeviceKind target,
                                std::int64_t weights, int replicas);

}  // namespace trireme::train
