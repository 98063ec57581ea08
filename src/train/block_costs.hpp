#pragma once

#include <vector>

#include "trireme/train/replica.hpp"

namespace trireme::train {

/// Multiplications and additions of a forward through each block, counted by running it on meta;
/// the head's go with the last block, where it is computed.
std::vector<double> block_costs(const ReplicaOptions& options);

}  // namespace trireme::train
