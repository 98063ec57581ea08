#include "trireme/kernels/activation.hpp"

#include "elements.hpp"
#include "vector_math.hpp"

// Both activations are x times a logistic sigmoid: silu(x) = x sigmoid(x), and since 1 + tanh(u) = 2 sigmoid(2 u), gelu(x) = x sigmoid(2 u)
// with u = sqrt(2/pi) (x + 0.044715 x^3). Each operand is read once, each result written once.

namespace trireme::kernels {
namespace {

const std::string gelu_forward_label = "trireme/kernels/gelu_forward";
const std::string gelu_backward_label = "trireme/kernels/gelu_backward";
const std::string swiglu_forward_label = "trireme/kernels/swiglu_forward";
const std::string swiglu_backward_label = "trireme/kernels/swiglu_backward";

/// sigmoid(v) and its derivative, from e = exp(-|v|) <= 1: 1 / (1 + e) and e / (1 + e) are the sigmoids of |v| and -|v|, so that the small
/// one keeps its digits. Relative error below 7 * 2^-24 (e 4, sum, quotient and product 1 each), of the derivative below 12; where
/// v < -87, whose sigmoid is under the smallest normal number, 0.
struct Sigmoid {
  float value, derivative;
};
KOKKOS_INLINE_FUNCTION Sigmoid sigmoid(float v) {
  const float e = fast_exp(v < 0 ? v : -v);
  const float larger = 1.0f / (1.0f + e), smaller = e * larger;
  return {v < 0 ? smaller : larger, larger * smaller};
}

constexpr float gelu_slope = 1.5957691216f;  // 2 sqrt(2/pi)
constexpr float gelu_cubic = 0.0713548163f;  // 2 sqrt(2/pi) 0.044715

template <class T>
struct GeluForward {
  const T* x;
  T* y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const float value = to_float(x[i]);
    y[i] = from_float<T>(value * sigmoid(value * (gelu_slope + gelu_cubic * (value * value))).value);
  }
};

template <class T>
struct GeluBackward {
  const T *x, *dy;
  T* dx;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const float value = to_float(x[i]), square = value * value;
    const Sigmoid s = sigmoid(value * (gelu_slope + gelu_cubic * square));
    dx[i] = from_float<T>(to_float(dy[i]) * (s.value + value * s.derivative * (gelu_slope + 3 * gelu_cubic * square)));
  }
};

/// A piece is a row.
template <class T>
struct SwigluForward {
  std::int64_t width;
  const T* x;
  T* y;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return width; }
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    const T *gate = x + row * 2 * width, *up = gate + width;
    T* out = y + row * width;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float g = to_float(gate[i]);
      out[i] = from_float<T>(g * sigmoid(g).value * to_float(up[i]));
    }
  }
};

template <class T>
struct SwigluBackward {
  std::int64_t width;
  const T *x, *dy;
  T* dx;

  KOKKOS_FUNCTION std::int64_t extent(std::int64_t) const { return width; }
  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    const T *gate = x + row * 2 * width, *up = gate + width, *gradient = dy + row * width;
    T *dgate = dx + row * 2 * width, *dup = dgate + width;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float g = to_float(gate[i]), d = to_float(gradient[i]), u = to_float(up[i]);
      const Sigmoid s = sigmoid(g);
      dgate[i] = from_float<T>(d * u * (s.value + g * s.derivative));
      dup[i] = from_float<T>(d * (g * s.value));
    }
  }
};

}  // namespace

template <class T>
void gelu_forward(const Stream& stream, std::int64_t count, const T* x, T* y) {
  for_each_element(stream, gelu_forward_label, count, GeluForward<T>{x, y});
}
template void gelu_forward(const Stream&, std::int64_t, const float*, float*);
template void gelu_forward(const Stream&, std::int64_t, const BFloat16*, BFloat16*);

template <class T>
void gelu_backward(const Stream& stream, std::int64_t count, const T* x, const T* dy, T* dx) {
  for_each_element(stream, gelu_backward_label, count, GeluBackward<T>{x, dy, dx});
}
template void gelu_backward(const Stream&, std::int64_t, const float*, const float*, float*);
template void gelu_backward(const Stream&, std::int64_t, const BFloat16*, const BFloat16*, BFloat16*);

template <class T>
void swiglu_forward(const Stream& stream, std::int64_t rows, std::int64_t width, const T* x, T* y) {
  dispatch(stream, [&](const auto& space) { for_each_piece(space, swiglu_forward_label, rows, SwigluForward<T>{width, x, y}); });
}
template void swiglu_forward(const Stream&, std::int64_t, std::int64_t, const float*, float*);
template void swiglu_forward(const Stream&, std::int64_t, std::int64_t, const BFloat16*, BFloat16*);

template <class T>
void swiglu_backward(const Stream& stream, std::int64_t rows, std::int64_t width, const T* x, const T* dy, T* dx) {
  dispatch(stream, [&](const auto& space) { for_each_piece(space, swiglu_backward_label, rows, SwigluBackward<T>{width, x, dy, dx}); });
}
template void swiglu_backward(const Stream&, std::int64_t, std::int64_t, const float*, const float*, float*);
template void swiglu_backward(const Stream&, std::int64_t, std::int64_t, const BFloat16*, const BFloat16*, BFloat16*);

}  // namespace trireme::kernels
