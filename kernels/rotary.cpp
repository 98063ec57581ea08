// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding, in place. Called by src/ops/rotary.cpp on queries and keys, forward
// and (with the inverse rotation) backward.
// Plan: the sines and cosines of a block of pairs are computed once per row and used for every head
// (on a device: for up to eight heads).
// The angle and its reduction are in double: position times frequency, up to some millions of
// radians, has an error of 1e-9. Only sine and cosine are rounded to float32.
// Memory traffic: x is read and written once.

#include "trireme/kernels/rotary.hpp"

#include <cmath>
#include <cstring>

#include "kernels/space/packed_rows.hpp"

namespace trireme::kernels {
namespace {

const std::string frequency_label = "trireme/kernels/rotary_frequencies";
const std::string rotary_label = "trireme/kernels/rotary";

// Pairs that one call rotates side by side: some vector registers' worth.
constexpr int host_lanes = 64;

struct SineCosine {
  float sine, cosine;
};

/// Returns sine and cosine without branches or calls, so that loops over it vectorize.
/// The angle less the nearest multiple n of pi/2 is within pi/4, where the Taylor series have an
/// error below (pi/4)^13 / 13! = 7e-12. n mod 4 selects series and signs.
KOKKOS_INLINE_FUNCTION SineCosine sine_cosine(double angle) {
  constexpr double two_over_pi = 0.63661977236758134308, half_pi = 1.57079632679489661923;
  // 1.5 * 2^52: adding it leaves the nearest integer in the low bits.
  constexpr double to_integer = 6755399441055744.0;
  const double shifted = angle * two_over_pi + to_integer;
  const double r = angle - (shifted - to_integer) * half_pi, square = r * r;
  double s = -1 / 39916800.0, c = 1 / 479001600.0;
  s = s * square + 1 / 362880.0;
  s = s * square - 1 / 5040.0;
  s = s * square + 1 / 120.0;
  s = s * square - 1 / 6.0;
  s = s * square * r + r;
  c = c * square - 1 / 3628800.0;
  c = c * square + 1 / 40320.0;
  c = c * square - 1 / 720.0;
  c = c * square + 1 / 24.0;
  c = c * square - 0.5;
  c = c * square + 1;
  std::uint64_t quarter;
  memcpy(&quarter, &shifted, sizeof quarter);
  const double sine = (quarter & 1) != 0 ? c : s, cosine = (quarter & 1) != 0 ? s : c;
  return {static_cast<float>((quarter & 2) != 0 ? -sine : sine),
          static_cast<float>(((quarter + 1) & 2) != 0 ? -cosine : cosine)};
}

/// frequencies[i] = base^(-2 i / head_width), in double.
struct Frequencies {
  double base;
  std::int64_t head_width;
  double* frequencies;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    frequencies[i] = pow(base, -2 * static_cast<double>(i) / static_cast<double>(head_width));
  }
};

/// Host form: a piece is a row; an element of it is one pair in all heads.
template <class T, int width>
struct Rotate {
  RotaryShape shape;
  T* x;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return shape.head_width / 2; }
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t pair = begin; pair < end; pair += width)
      rotate_pairs(row, pair, end - pair < width ? static_cast<int>(end - pair) : width);
  }

  KOKKOS_FUNCTION void rotate_pairs(std::int64_t row, std::int64_t pair, int count) const {
    const double position =
        static_cast<double>((shape.first + row) % shape.context) * (shape.inverse ? -1 : 1);
    const double* frequencies = shape.frequencies + pair;
    float sine[width], cosine[width];
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      const SineCosine t = sine_cosine(position * frequencies[i]);
      sine[i] = t.sine;
      cosine[i] = t.cosine;
    }
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      T *first = x + row * shape.columns + head * shape.head_width + pair,
        *second = first + shape.head_width / 2;
#pragma omp simd
      for (int i = 0; i < count; ++i) {
        const float a = to_float(first[i]), b = to_float(second[i]);
        first[i] = from_float<T>(a * cosine[i] - b * sine[i]);
        second[i] = from_float<T>(b * cosine[i] + a * sine[i]);
      }
    }
  }
};

/// Device form: a thread takes one row, a pack of pairs and `thread_heads` heads, with the loads of
/// four heads in flight.
template <class T, int lanes>
struct RotatePacks {
  RotaryShape shape;
  T* x;
  Divisor packs, groups, context;
  static constexpr int thread_heads = 8, heads_at_once = 4;

  RotatePacks(const RotaryShape& s, T* values)
      : shape(s),
        x(values),
        packs(s.head_width / 2 / lanes),
        groups((s.heads + thread_heads - 1) / thread_heads),
        context(s.context) {}
  std::int64_t threads() const { return shape.rows * groups.value() * packs.value(); }

  KOKKOS_FUNCTION void operator()(std::int64_t thread) const {
    const std::int64_t row_and_group = packs.quotient(thread),
                       pair = (thread - row_and_group * packs.value()) * lanes;
    const std::int64_t row = groups.quotient(row_and_group),
                       group = row_and_group - row * groups.value();
    const std::int64_t place = shape.first + row;
    const double position = static_cast<double>(place - context.quotient(place) * context.value()) *
                            (shape.inverse ? -1 : 1);
    float sine[lanes], cosine[lanes];
    for (int k = 0; k < lanes; ++k) {
      const SineCosine t = sine_cosine(position * shape.frequencies[pair + k]);
      sine[k] = t.sine;
      cosine[k] = t.cosine;
    }
    std::int64_t head = group * thread_heads;
    const std::int64_t end = head + thread_heads < shape.heads ? head + thread_heads : shape.heads;
    T* at = x + row * shape.columns + head * shape.head_width + pair;
    TRIREME_ROLLED
    for (; head + heads_at_once <= end;
         head += heads_at_once, at += heads_at_once * shape.head_width)
      rotate_pairs<heads_at_once>(at, sine, cosine);
    TRIREME_ROLLED
    for (; head < end; ++head, at += shape.head_width) rotate_pairs<1>(at, sine, cosine);
  }

  template <int heads>
  KOKKOS_FORCEINLINE_FUNCTION void rotate_pairs(T* at, const float (&sine)[lanes],
                                                const float (&cosine)[lanes]) const {
    const std::int64_t half = shape.head_width / 2;
    float first[heads][lanes], second[heads][lanes];
    for (int h = 0; h < heads; ++h) {
      load<lanes>(at + h * shape.head_width, first[h]);
      load<lanes>(at + h * shape.head_width + half, second[h]);
    }
    for (int h = 0; h < heads; ++h) {
      for (int k = 0; k < lanes; ++k) {
        const float a = first[h][k], b = second[h][k];
        first[h][k] = a * cosine[k] - b * sine[k];
        second[h][k] = b * cosine[k] + a * sine[k];
      }
      store<lanes>(first[h], at + h * shape.head_width);
      store<lanes>(second[h], at + h * shape.head_width + half);
    }
  }
};

template <int lanes, class Space, class T>
void run_packs(const Space& space, const RotaryShape& shape, T* x) {
  const RotatePacks<T, lanes> rotate(shape, x);
  for_each_small_index(space, rotary_label, rotate.threads(), rotate);
}

template <class Space, class T>
void run(const Space& space, const RotaryShape& shape, T* x) {
  for_each_index(space, frequency_label, shape.head_width / 2,
                 Frequencies{shape.base, shape.head_width, shape.frequencies});
  if constexpr (on_host<Space>) {
    for_each_piece(space, rotary_label, shape.rows, Rotate<T, host_lanes>{shape, x});
  } else {
    constexpr int lanes = pack_lanes<T>;
    const bool packed =
        packs_fit(x) && shape.columns % lanes == 0 && shape.head_width % (2 * lanes) == 0;
    packed ? run_packs<lanes>(space, shape, x) : run_packs<1>(space, shape, x);
  }
}

}  // namespace

template <class T>
void rotary(const Stream& stream, const RotaryShape& shape, T* x) {
  dispatch(stream, [=](const auto& space) { run(space, shape, x); });
}
template void rotary(const Stream&, const RotaryShape&, float*);
template void rotary(const Stream&, const RotaryShape&, BFloat16*);
template void rotary(const Stream&, const RotaryShape&, Float16*);

}  // namespace trireme::kernels
