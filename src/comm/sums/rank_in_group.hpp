// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace trireme::comm {

/// A rank of a group, and its partners in pairwise exchange: at level k they differ in bit k of the
/// rank.
struct RankInGroup {
  int rank = 0, size = 1;

  /// Returns whether the size is a power of two, so that pairwise exchange reaches every rank.
  bool is_power_of_two() const { return std::has_single_bit(static_cast<unsigned>(size)); }
  int levels() const { return std::bit_width(static_cast<unsigned>(size)) - 1; }
  int partner(int level) const { return rank ^ (1 << level); }
  /// Returns whether this rank is the higher one of its pair.
  bool is_upper(int level) const { return (rank >> level & 1) != 0; }
  /// Ranks at distance `steps` in the ring.
  int ring_next(int steps = 1) const { return (rank + steps) % size; }
  int ring_previous(int steps = 1) const { return (rank - steps + size) % size; }
};

/// Elements or bytes [begin, end) of the memory of a request.
struct IndexRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Returns the part of `rank`, counted from bounds.front().
inline IndexRange part_of(std::span<const std::int64_t> bounds, int rank) {
  const auto at = static_cast<std::size_t>(rank);
  return {bounds[at] - bounds.front(), bounds[at + 1] - bounds.front()};
}

/// Returns the bytes that one rank sends when `bytes` travel around a ring once.
inline double ring_bytes(const RankInGroup& group, std::int64_t bytes) {
  return static_cast<double>(bytes) * (group.size - 1) / group.size;
}

}  // namespace trireme::comm
