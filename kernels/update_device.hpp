// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device form of the update kernels (update.cpp). A team takes one chunk, and each thread takes two
// packs of every array at a time.
//
//   load    weight, gradient, slot1, slot2 of two packs     all loads before the first use
//   compute the rule's step in registers
//   store   weight, slot1, slot2, and the working copy from the same registers

#include <cfloat>

#include "pack_walk.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::kernels {

/// Leaves the gradient as it is.
struct NoClip {
  KOKKOS_FUNCTION float operator()(float g) const { return g; }
};
/// Clips an element of the gradient to [-limit, limit]. Values that are not finite stay, so that
/// the norm shows them and the step is skipped.
struct Clip {
  float limit;
  KOKKOS_FUNCTION float operator()(float g) const {
    const float magnitude = fabsf(g);
    return magnitude > limit && magnitude <= FLT_MAX ? copysignf(limit, g) : g;
  }
};

/// The arrays that an element's step reads and writes. The step is a functor on references to
/// weight, gradient and the two slots of an element.
enum Arrays : unsigned { weights = 1, gradients = 2, first_slots = 4, second_slots = 8 };

constexpr unsigned slot_arrays(int slots) {
  return (slots > 0 ? unsigned{first_slots} : 0) | (slots > 1 ? unsigned{second_slots} : 0);
}

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
    if constexpr ((arrays & first_slots) != 0) first_ = args.slot1 + chunk.offset;
    if constexpr ((arrays & second_slots) != 0) second_ = args.slot2 + chunk.offset;
    const std::int64_t place = offset_in_pack(weight_);
    const bool same_alignment = (gradient_ == nullptr || offset_in_pack(gradient_) == place) &&
                                (first_ == nullptr || offset_in_pack(first_) == place) &&
                                (second_ == nullptr || offset_in_pack(second_) == place);
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
    float weight[lanes], gradient[lanes], first[lanes], second[lanes];
  };
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void load(int i, Operands<lanes>& o) const {
    read<weights>(weight_ + i, o.weight);
    read<gradients>(gradient_ + i, o.gradient);
    read<first_slots>(first_ + i, o.first);
    read<second_slots>(second_ + i, o.second);
  }
  template <int lanes>
  KOKKOS_FORCEINLINE_FUNCTION void process(int i, Operands<lanes>& o) const {
    for (int k = 0; k < lanes; ++k) element_(o.weight[k], o.gradient[k], o.first[k], o.second[k]);
    if constexpr ((Element::writes & weights) != 0) store<lanes>(o.weight, weight_ + i);
    if constexpr ((Element::writes & gradients) != 0) store<lanes>(o.gradient, gradient_ + i);
    if constexpr ((Element::writes & first_slots) != 0) store<lanes>(o.first, first_ + i);
    if constexpr ((Element::writes & second_slots) != 0) store<lanes>(o.second, second_ + i);
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
  float *weight_ = nullptr, *gradient_ = nullptr, *first_ = nullptr, *second_ = nullptr;
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
  /// Processes one chunk by a team.
  walk_packs<chunk_lanes, 2>(group, step.head(), chunk.elements, step);
}

/// Square sums of rows, by warps. A warp takes some rows: short rows one per thread, the others one
/// after another with four neighboring elements per thread.
/// The order of a sum depends on the row's length only. If packs are not aligned, the same threads
/// take the same elements one by one. `clip`: NoClip or Clip.
template <class Clipping>
struct RowSquareSumByTeam {
  static constexpr int threads = 32, lanes = 4, unroll = 4;
  static constexpr std::int64_t short_row = 8;
  const float* flat;
  const FlatRow* rows;
  std::int64_t row_count, rows_per_team;
  double* sums;
  Clipping clip;

  /// Returns the square of an element.
  KOKKOS_FORCEINLINE_FUNCTION double square(float x) const {
    const auto value = static_cast<double>(clip(x));
    return value * value;
  }

  template <class Group>
  KOKKOS_FUNCTION void operator()(std::int64_t index, const Group& group) const {
    const std::int64_t begin = index * rows_per_team,
                       end = begin + rows_per_team < row_count ? begin + rows_per_team : row_count;
    for (std::int64_t row = begin + group.first(); row < end; row += group.step()) {
      if (rows[row].elements > short_row) continue;
      const float* x = flat + rows[row].offset;
      double sum = 0;
      for (std::int64_t i = 0; i < rows[row].elements; ++i) sum += square(x[i]);
      sums[row] = sum;
    }
    for (std::int64_t row = begin; row < end; ++row) {
      if (rows[row].elements <= short_row) continue;
      const float* x = flat + rows[row].offset;
      Sums<1> sum;
      const bool aligned = reinterpret_cast<std::uintptr_t>(x) % pack_bytes == 0;
      sum.value[0] = aligned ? sum_of_thread<true>(x, rows[row].elements, group)
                             : sum_of_thread<false>(x, rows[row].elements, group);
      group.add_up(sum);
      if (group.is_leader()) sums[row] = sum.value[0];
    }
  }

  template <bool aligned, class Group>
  KOKKOS_FUNCTION double sum_of_thread(const float* x, std::int64_t count,
                                       const Group& group) const {
    const int stride = static_cast<int>(group.step()) * lanes, elements = static_cast<int>(count),
              packed = elements / lanes * lanes;
    double sum[lanes] = {};
    for (int i = static_cast<int>(group.first()) * lanes; i < packed; i += unroll * stride) {
      float value[unroll][lanes];
      for (int k = 0; k < unroll; ++k) {
        if (i + k * stride >= packed) continue;
        if constexpr (aligned) {
          load<lanes>(x + i + k * stride, value[k]);
        } else {
          for (int lane = 0; lane < lanes; ++lane) value[k][lane] = x[i + k * stride + lane];
        }
      }
      for (int k = 0; k < unroll; ++k) {
        if (i + k * stride >= packed) continue;
        for (int lane = 0; lane < lanes; ++lane) sum[lane] += square(value[k][lane]);
      }
    }
    for (int i = packed + static_cast<int>(group.first()); i < elements;
         i += static_cast<int>(group.step())) {
      sum[0] += square(x[i]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
};

}  // namespace trireme::kernels
