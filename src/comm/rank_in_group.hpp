#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace trireme::comm {

/// A rank of a group and its partners in pairwise exchange: at level k they are the two whose
/// numbers differ in bit k alone.
struct RankInGroup {
  int rank = 0, size = 1;

  /// Whether such pairs bring every rank together with every other: powers of two.
  bool is_power_of_two() const { return std::has_single_bit(static_cast<unsigned>(size)); }
  int levels() const { return std::bit_width(static_cast<unsigned>(size)) - 1; }
  int partner(int level) const { return rank ^ (1 << level); }
  bool is_upper(int level) const { return (rank >> level & 1) != 0; }
  /// Neighbours in the ring.
  int ring_next(int steps = 1) const { return (rank + steps) % size; }
  int ring_previous(int steps = 1) const { return (rank - steps + size) % size; }
};

/// Elements or bytes [begin, end) of a request's memory.
struct IndexRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// A rank's part of what the bounds cut, from where they begin.
inline IndexRange part_of(std::span<const std::int64_t> bounds, int rank) {
  const auto at = static_cast<std::size_t>(rank);
  return {bounds[at] - bounds.front(), bounds[at + 1] - bounds.front()};
}

}  // namespace trireme::comm
