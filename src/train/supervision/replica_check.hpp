// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/parallel/mesh.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::train {

/// Returns, by world rank, the XXH3 hash of the weights and statistics that all data ranks hold
/// alike: replicated master weights and working weights.
///
/// Empty if nothing is replicated (shard = "parameters", or one data rank). No request may be in
/// flight in the engine. Copies the weights to the host in blocks of 4 MiB and waits for them.
/// Collective over the world.
std::vector<std::uint64_t> replica_hashes(Replica& replica);

/// Returns the world ranks whose hash differs from the majority of the data ranks with the same
/// stage and tensor rank. Without a majority (more than half) it returns all ranks of that group.
std::vector<int> differing_ranks(const parallel::MeshShape& shape,
                                 const std::vector<std::uint64_t>& hashes);

}  // namespace trireme::train
