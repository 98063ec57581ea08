#include "trireme/kernels/rotary.hpp"

#include <cmath>
#include <cstring>

#include "launch.hpp"

// A row's sines and cosines are made once, a block of pairs at a time, and turn that block in every head; x is read and written once. The
// angle and its reduction are in double: position times frequency, up to some millions of radians, is then right to 1e-9, and only the
// sine and the cosine are rounded to float32.

namespace trireme::kernels {
namespace {

const std::string frequency_label = "trireme/kernels/rotary_frequencies";
const std::string rotary_label = "trireme/kernels/rotary";

/// Pairs that one call turns side by side: on the host some vector registers' worth, on a device the thread's own.
template <class Space>
constexpr int lanes = on_host<Space> ? 64 : 1;

struct Turn {
  float sine, cosine;
};

/// Without branches or calls, so that loops over it vectorise. The angle less the nearest multiple n of pi/2 is within pi/4, where Taylor's
/// series end with an error below (pi/4)^13 / 13! = 7e-12; n mod 4 says which of the two is which, and the signs.
KOKKOS_INLINE_FUNCTION Turn turn_by(double angle) {
  constexpr double two_over_pi = 0.63661977236758134308, half_pi = 1.57079632679489661923;
  constexpr double to_integer = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves the nearest integer in the low bits
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
  return {static_cast<float>((quarter & 2) != 0 ? -sine : sine), static_cast<float>(((quarter + 1) & 2) != 0 ? -cosine : cosine)};
}

struct Frequencies {
  double base;
  std::int64_t head_width;
  double* frequencies;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { frequencies[i] = pow(base, -2 * static_cast<double>(i) / static_cast<double>(head_width)); }
};

/// A piece is a row, an element of it one pair of all its heads.
template <class T, int width>
struct Rotate {
  RotaryShape shape;
  T* x;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return shape.head_width / 2; }
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t pair = begin; pair < end; pair += width) turn(row, pair, end - pair < width ? static_cast<int>(end - pair) : width);
  }

  KOKKOS_FUNCTION void turn(std::int64_t row, std::int64_t pair, int count) const {
    const double position = static_cast<double>(row % shape.context) * (shape.inverse ? -1 : 1);
    const double* frequencies = shape.frequencies + pair;
    float sine[width], cosine[width];
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      const Turn t = turn_by(position * frequencies[i]);
      sine[i] = t.sine;
      cosine[i] = t.cosine;
    }
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      T *first = x + row * shape.columns + head * shape.head_width + pair, *second = first + shape.head_width / 2;
#pragma omp simd
      for (int i = 0; i < count; ++i) {
        const float a = to_float(first[i]), b = to_float(second[i]);
        first[i] = from_float<T>(a * cosine[i] - b * sine[i]);
        second[i] = from_float<T>(b * cosine[i] + a * sine[i]);
      }
    }
  }
};

template <class Space, class T>
void run(const Space& space, const RotaryShape& shape, T* x) {
  for_each_index(space, frequency_label, shape.head_width / 2, Frequencies{shape.base, shape.head_width, shape.frequencies});
  for_each_piece(space, rotary_label, shape.rows, Rotate<T, lanes<Space>>{shape, x});
}

}  // namespace

template <class T>
void rotary(const Stream& stream, const RotaryShape& shape, T* x) {
  dispatch(stream, [&](const auto& space) { run(space, shape, x); });
}
template void rotary(const Stream&, const RotaryShape&, float*);
template void rotary(const Stream&, const RotaryShape&, BFloat16*);

}  // namespace trireme::kernels
