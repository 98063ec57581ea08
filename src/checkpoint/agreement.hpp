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
  for (const Piece& piece : pieces) hash = mix64(hash ^ random_key(0, piece.path + to_string(piece.spec->shape)));
  return hash;
}

/// Rows as a sum, by which ranks that hold parts of a tensor see whether together they hold every row exactly so many times.
inline std::uint64_t cover_of(std::int64_t row_begin, std::int64_t row_end) {
  std::uint64_t sum = 0;
  for (std::int64_t row = row_begin; row < row_end; ++row) sum += mix64(static_cast<std::uint64_t>(row) + 0x9E3779B97F4A7C15ull);
  return sum;
}

}  // namespace trireme::checkpoint
