#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/base/philox.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Whether all ranks give the same number. Collective.
inline bool same_everywhere(const comm::Communicator& world, std::uint64_t number) {
  std::uint64_t low = number, high = number;
  world.all_reduce(std::span(&low, 1), comm::Reduction::min);
  world.all_reduce(std::span(&high, 1), comm::Reduction::max);
  return low == high;
}

/// A number for the names and shapes of tensors in their order.
inline std::uint64_t fingerprint_of(std::span<const Piece> pieces) {
  std::uint64_t hash = pieces.size();
  for (const Piece& piece : pieces)
    hash = mix64(hash ^ random_key(0, piece.path + to_string(piece.spec->shape)));
  return hash;
}

}  // namespace trireme::checkpoint
