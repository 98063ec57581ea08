// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device form of the update kernels (update_rule.hpp). A team takes one chunk, and each thread
// takes two packs of every array at a time.
//
//   load    weight, gradient and slots of two packs         all loads before the first use
//   compute the rule's step in registers
//   store   weight, slots, and the working copy from the same registers

#include "kernels/space/pack_walk.hpp"
#include "trireme/kernels/update/update.hpp"

namespace trireme::kernels {

/// The arrays that an element's step reads and writes, besides its slots, which it reads and
/// writes. The step is a functor on references to weight, gradient and the two slots of an element.
enum Arrays : unsigned { weights = 1, gradients = 2 };

constexpr int chunk_lanes = pack_lanes<float>;

/// The walk (pack_walk.hpp) over one chunk: loads, computes and stores elements of its arrays.
/// Packs are used only if all arrays have the same offset from a pack boundary.
template <class Element>
class ChunkStep {
 public:
  KOKKOS_FUNCTION ChunkStep(const Update& args, const FlatChunk& chunk, const Element& element)
      : element_(element) {
    weight_ = args.weight + chunk.offset;
    if constexpr ((arrays & gradients) != 0) gradient_ = args.gradient + chunk.offset;
    const std::int64_t place = offset_in_pack(weight_);
    bool same_alignment = gradient_ == nullptr || offset_in_pack(gradient_) == place;
    for (int slot = 0; slot < Element::slots; ++slot) {
      slots_[slot] = args.slots[slot] + chunk.offset;
      same_alignment = same_alignment && offset_in_pack(slots_[slot]) == place;
    }
    head_ = same_alignment ? unaligned_head<chunk_lanes>(place, chunk.elements) : chunk.elements;
    if constexpr ((Element::writes & weights) == 0) return;
    if (args.working_weights == nullptr) return;
    working_ = args.working_weights + chunk.working_offset;
    working_type_ = chunk.working_type;
    const std::size_t size = size_of(working_type_);
    working_packs_ =
        reinterpret_cast<std::uintptr_t>(working_ + head_ * size) % (chunk_lanes * size) == 0;
  }
  /// Returns the number of elements before the first pack.
  KOKKOS_FUNCTION int head() const { return head_; }

  template <int lanes>
  struct Operands {
    float weight[lanes], gradient[lanes];
    float slots[max_slots][lanes];
  };
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void load(int i, Operands<lanes>& o) const {
    read<weights>(weight_ + i, o.weight);
    read<gradients>(gradient_ + i, o.gradient);
    TRIREME_UNROLLED
    for (int slot = 0; slot < max_slots; ++slot) {
      if (slot < Element::slots) {
        kernels::load<lanes>(slots_[slot] + i, o.slots[slot]);
      } else {
        for (int k = 0; k < lanes; ++k) o.slots[slot][k] = 0;
      }
    }
  }
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void process(int i, Operands<lanes>& o) const {
    for (int k = 0; k < lanes; ++k)
      element_(o.weight[k], o.gradient[k], o.slots[0][k], o.slots[1][k]);
    if constexpr ((Element::writes & weights) != 0) store<lanes>(o.weight, weight_ + i);
    if constexpr ((Element::writes & gradients) != 0) store<lanes>(o.gradient, gradient_ + i);
    TRIREME_UNROLLED
    for (int slot = 0; slot < Element::slots; ++slot) store<lanes>(o.slots[slot], slots_[slot] + i);
    if constexpr ((Element::writes & weights) != 0) {
      if (working_ != nullptr)
        with_type(working_type_,
                  [&]<class T>(T) { copy(o.weight, reinterpret_cast<T*>(working_) + i); });
    }
  }

 private:
  // The weights are always included: the alignment of the other arrays is compared with theirs.
  static constexpr unsigned arrays = Element::reads | Element::writes | weights;

  KOKKOS_FUNCTION static std::int64_t offset_in_pack(const float* pointer) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer) / sizeof(float)) %
           chunk_lanes;
  }

  template <unsigned array, int lanes>
  KOKKOS_FORCEINLINE_FUNCTION static void read(const float* from, float (&to)[lanes]) {
    if constexpr ((Element::reads & array) != 0) {
      kernels::load<lanes>(from, to);
    } else {
      for (int k = 0; k < lanes; ++k) to[k] = 0;
    }
  }

  template <int lanes, class T>
  KOKKOS_FORCEINLINE_FUNCTION void copy(const float (&from)[lanes], T* to) const {
    if (working_packs_) return store<lanes>(from, to);
    for (int k = 0; k < lanes; ++k) to[k] = from_float<T>(from[k]);
  }

  Element element_;
  float *weight_ = nullptr, *gradient_ = nullptr, *slots_[max_slots] = {};
  /// working copy of the chunk; null: none
  std::byte* working_ = nullptr;
  ElementType working_type_ = ElementType::float32;
  bool working_packs_ = false;
  int head_ = 0;
};

template <class Element, class Group>
KOKKOS_FUNCTION void walk_chunk(const Group& group, const Update& args, const FlatChunk& chunk,
                                const Element& element) {
  ChunkStep<Element> step(args, chunk, element);
  walk_packs<chunk_lanes, 2>(group, step.head(), chunk.elements, step);
}

}  // namespace trireme::kernels
