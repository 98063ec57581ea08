#pragma once

// How a team of a device walks over neighbouring elements that need not begin where a pack may:
// those before the first whole pack and behind the last go one by one, the packs between them
// `unroll` a thread, all of whose operands are on their way before the first is used. A step has
//   template <int lanes> struct Operands;
//   template <int lanes> void load(int i, Operands<lanes>&) const;  // of elements [i, i + lanes)
//   template <int lanes> void take(int i, Operands<lanes>&);

#include "pack.hpp"
#include "row_group.hpp"

namespace trireme::kernels {

/// Elements before the first whole pack of `count` elements whose first is number `place` of an
/// array that begins with a pack.
template <int lanes>
KOKKOS_FORCEINLINE_FUNCTION int unaligned_head(std::int64_t place, int count) {
  const int head = static_cast<int>((lanes - place % lanes) % lanes);
  return head < count ? head : count;
}

/// Packs pack, pack + stride ... below `packs`, the first of which begins at element `head`; what
/// is left of whole rounds of `unroll` in smaller ones.
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

/// Elements [0, count), packs from `head` on; count: none.
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
