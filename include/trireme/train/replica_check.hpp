#pragma once

#include <cstdint>
#include <vector>

#include "trireme/parallel/mesh.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// XXH3 of the weights and statistics that all data ranks of this place of the model hold alike, of
/// every world rank: of the masters where they are replicated, and of the working weights. Empty
/// where nothing is (shard = "parameters", a data degree of 1). Nothing may be under way in the
/// engine. Collective over the world.
std::vector<std::uint64_t> replica_hashes(Replica& replica);

/// The world ranks whose hash is not that of most data ranks of their place; where no value has
/// more than half of them, all of that place.
std::vector<int> differing_ranks(const parallel::MeshShape& shape,
                                 const std::vector<std::uint64_t>& hashes);

}  // namespace trireme::train
