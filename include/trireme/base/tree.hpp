#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>

#include "trireme/base/philox.hpp"  // TRIREME_FUNCTION

namespace trireme {

/// Sum of values [0, n) by recursive halving of the index range, the left part floor(n / 2) long:
/// the order in which everything of a step is added under `deterministic`. A data degree 2^k that
/// divides n gives each replica one whole subtree. `part` says what of a value is added.
template <class T, class Projection = std::identity>
auto tree_sum(std::span<const T> values, Projection projection = {})
    -> std::decay_t<decltype(std::invoke(projection, values[0]))> {
  if (values.empty()) return {};
  if (values.size() == 1) return std::invoke(projection, values[0]);
  const std::size_t half = values.size() / 2;
  return tree_sum(values.first(half), projection) + tree_sum(values.subspan(half), projection);
}

/// Walks the tree over [0, leaves) as its leaves arrive in order, with a stack of partial sums:
/// after leaf i, merges(i) tells how many times the two topmost partial sums are added (lower +
/// upper). At most depth() partial sums are held at once.
class TreeWalk {
 public:
  TRIREME_FUNCTION explicit TreeWalk(std::int64_t leaves) : leaves_(leaves) {}
  /// Number of additions that follow leaf `leaf`: the ranges of the halving that end with it, less
  /// itself.
  TRIREME_FUNCTION int merge_count(std::int64_t leaf) const {
    std::int64_t begin = 0, end = leaves_;
    int closing =
        0;  // ranges on the way down of which `leaf` is the last element, since the last left turn
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
  /// 1 + ceil(log2 leaves): buffers needed.
  int depth() const { return 1 + std::bit_width(static_cast<std::uint64_t>(leaves_ - 1)); }

 private:
  std::int64_t leaves_;
};

}  // namespace trireme
