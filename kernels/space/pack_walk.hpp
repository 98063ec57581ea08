// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a device team walks over neighboring elements that need not begin at a pack boundary:
//
//   elements   | head | pack pack pack pack ... | tail |
//   access     | one by one | `unroll` packs per thread, all loads before first use | one by one |
//
// A step has these members, with lanes = the given pack size or 1:
//   template <int lanes> struct Operands;
//   template <int lanes> void load(int i, Operands<lanes>&) const;  // elements [i, i + lanes)
//   template <int lanes> void process(int i, Operands<lanes>&);

#include "pack.hpp"
#include "row_group.hpp"

namespace trireme::kernels {

/// Returns the number of elements before the first pack boundary, at most `count`. `place`: index
/// of the first element in an array that begins at a boundary.
template <int lanes>
KOKKOS_FORCEINLINE_FUNCTION int unaligned_head(std::int64_t place, int count) {
  const int head = static_cast<int>((lanes - place % lanes) % lanes);
  return head < count ? head : count;
}

/// Processes packs pack, pack + stride, ... below `packs`; pack 0 begins at element `head`. The
/// rest of the last full round is processed with half the unrolling, recursively.
template <int lanes, int unroll, class Step>
KOKKOS_FORCEINLINE_FUNCTION void walk_rounds(int pack, int packs, int stride, int head,
                                             Step& step) {
  for (; pack + (unroll - 1) * stride < packs; pack += unroll * stride) {
    typename Step::template Operands<lanes> operands[unroll];
    for (int k = 0; k < unroll; ++k)
      step.template load<lanes>(head + (pack + k * stride) * lanes, operands[k]);
    for (int k = 0; k < unroll; ++k)
      step.template process<lanes>(head + (pack + k * stride) * lanes, operands[k]);
  }
  if constexpr (unroll > 1) walk_rounds<lanes, unroll / 2>(pack, packs, stride, head, step);
}

/// Processes elements [0, count). Packs begin at element `head`; head = count: no packs.
template <int lanes, int unroll, class Group, class Step>
KOKKOS_FORCEINLINE_FUNCTION void walk_packs(const Group& group, int head, int count, Step& step) {
  const int first = static_cast<int>(group.first()), stride = static_cast<int>(group.step());
  const int packs = (count - head) / lanes, packed = packs * lanes;
  for (int number = first; number < count - packed; number += stride) {
    const int i = number < head ? number : number + packed;
    typename Step::template Operands<1> operands;
    step.template load<1>(i, operands);
    step.template process<1>(i, operands);
  }
  walk_rounds<lanes, unroll>(first, packs, stride, head, step);
}

}  // namespace trireme::kernels
