// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "trireme/train/step/replica_options.hpp"

namespace trireme::train {

/// Returns the floating-point operations of forward through each block, counted on the meta device.
/// The last block includes the head. Used to balance pipeline chunks.
std::vector<double> block_costs(const ReplicaOptions& options);

}  // namespace trireme::train
