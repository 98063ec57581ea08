// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>

#include "trireme/base/philox.hpp"  // TRIREME_FUNCTION

namespace trireme {

/// Returns the sum of values [0, n) by recursive halving of the index range; the left half has
/// floor(n / 2) values. Under `deterministic` every sum of a step uses this order. If the data
/// degree is a power of two that divides n, each replica's values form one complete subtree, so the
/// sum does not depend on the degree. `projection` selects the summed member of a value.
template <class T, class Projection = std::identity>
auto tree_sum(std::span<const T> values, Projection projection = {})
    -> std::decay_t<decltype(std::invoke(projection, values[0]))> {
  if (values.empty()) return {};
  if (values.size() == 1) return std::invoke(projection, values[0]);
  const std::size_t half = values.size() / 2;
  return tree_sum(values.first(half), projection) + tree_sum(values.subspan(half), projection);
}

/// Computes tree_sum() over [0, leaves) while the leaves arrive in order, with a stack of partial
/// sums. After leaf i, the caller adds the two topmost partial sums (lower + upper) merge_count(i)
/// times. At most depth() partial sums exist at once.
///
///   leaf 0   push          stack: 0
///   leaf 1   push, 1 merge stack: 0+1
///   leaf 2   push          stack: 0+1, 2
///   leaf 3   push, 2 merges stack: (0+1)+(2+3)
class TreeWalk {
 public:
  TRIREME_FUNCTION explicit TreeWalk(std::int64_t leaves) : leaves_(leaves) {}
  /// Returns the number of additions after leaf `leaf`. This is the number of ranges in the
  /// halving, longer than one leaf, that end with `leaf`.
  TRIREME_FUNCTION int merge_count(std::int64_t leaf) const {
    std::int64_t begin = 0, end = leaves_;
    // The number of ranges on the way down that end with `leaf`, counted since the last left turn.
    int closing = 0;
    while (end - begin > 1) {
      const std::int64_t middle = begin + (end - begin) / 2;
      if (leaf < middle) {
        end = middle;
        closing = 0;
      } else {
        begin = middle;
        ++closing;
      }
    }
    return closing;
  }
  /// Returns 1 + ceil(log2 leaves), the number of buffers that the stack needs.
  int depth() const { return 1 + std::bit_width(static_cast<std::uint64_t>(leaves_ - 1)); }

 private:
  std::int64_t leaves_;
};

}  // namespace trireme
