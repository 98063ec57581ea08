// SPDX-License-Identifier: Apache-2.0
//
// GELU, SiLU and SwiGLU, forward and backward. Called by src/ops/activation.cpp.
// Each activation is x times a sigmoid:
// - silu(x) = x sigmoid(x), with the logistic one;
// - gelu(x) = x sigmoid(2 u) with u = sqrt(2/pi) (x + 0.044715 x^3), because 1 + tanh(u) = 2
//   sigmoid(2 u);
// - exact gelu(x) = x P(x), with the normal distribution's probability P of numbers below x.
// Memory traffic: each operand is read once, each result is written once.

#include "trireme/kernels/activation.hpp"

#include "kernels/space/elements.hpp"
#include "kernels/space/vector_math.hpp"

namespace trireme::kernels {
namespace {

const std::string gelu_forward_label = "trireme/kernels/gelu_forward";
const std::string gelu_backward_label = "trireme/kernels/gelu_backward";
const std::string gelu_exact_forward_label = "trireme/kernels/gelu_exact_forward";
const std::string gelu_exact_backward_label = "trireme/kernels/gelu_exact_backward";
const std::string silu_forward_label = "trireme/kernels/silu_forward";
const std::string silu_backward_label = "trireme/kernels/silu_backward";
const std::string swiglu_forward_label = "trireme/kernels/swiglu_forward";
const std::string swiglu_backward_label = "trireme/kernels/swiglu_backward";

/// sigmoid(v) and its derivative, from e = exp(-|v|) <= 1. The sigmoids of |v| and -|v| are 1 / (1
/// + e) and e / (1 + e), so the smaller one keeps its digits.
/// Relative errors in units of 2^-24: below 7 for the value (e 4; sum, quotient and product 1
/// each), below 12 for the derivative. On a device 9 (e 5, quotient 2) and 14.
/// For v < -87 the value is 0; the true one is smaller than the smallest normal number.
struct Sigmoid {
  float value, derivative;
};
KOKKOS_INLINE_FUNCTION Sigmoid sigmoid(float v) {
  const float e = fast_exp(v < 0 ? v : -v);
  const float larger = reciprocal(1.0f + e), smaller = e * larger;
  return {v < 0 ? smaller : larger, larger * smaller};
}

// 2 sqrt(2/pi)
constexpr float gelu_slope = 1.5957691216f;
// 2 sqrt(2/pi) 0.044715
constexpr float gelu_cubic = 0.0713548163f;

/// Returns sigmoid(2 u) for gelu's x, where square = x^2. Errors as above.
/// A device computes exp(-2 u) as a power of 2: log2(e) is merged into the constants, so the
/// exponent has as few roundings as u. The upper limit keeps e finite; then 1 / (1 + e) is 0.
KOKKOS_INLINE_FUNCTION Sigmoid gelu_sigmoid(float x, float square) {
#if defined(__CUDA_ARCH__)
  constexpr float log2_e = 1.44269504f;
  float e, exponent = x * (-gelu_slope * log2_e - gelu_cubic * log2_e * square);
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(exponent) : "f"(127.5f));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(exponent));
  const float value = reciprocal(1.0f + e);
  return {value, e * value * value};
#else
  return sigmoid(x * (gelu_slope + gelu_cubic * square));
#endif
}

struct GeluForward {
  KOKKOS_FUNCTION float operator()(float x) const { return x * gelu_sigmoid(x, x * x).value; }
};

struct GeluBackward {
  KOKKOS_FUNCTION float operator()(float x, float dy) const {
    const float square = x * x;
    const Sigmoid s = gelu_sigmoid(x, square);
    return dy * (s.value + x * s.derivative * (gelu_slope + 3 * gelu_cubic * square));
  }
};

/// The normal distribution's probability of numbers below x, and its density at x.
/// P(-a) for a = |x| is the density times Mills' ratio, a polynomial in t = 1 / (1 + 0.35 a)
/// without a constant term. It is a minimax fit on 0 <= a <= 14, with a relative error of 0.6 in
/// units of 2^-24, with its roundings 6. So the smaller of P(x) and P(-x) keeps its digits.
/// Relative errors in units of 2^-24: below 6 + x^2 / 2 for the density (exp 4, on a device 5),
/// 13 + x^2 / 2 for the smaller probability. For |x| > 13.1 both are 0; the true ones are smaller
/// than the smallest normal number.
KOKKOS_INLINE_FUNCTION Sigmoid normal_distribution(float x) {
  const float a = x < 0 ? -x : x;
  const float density = 0.398942280f * fast_exp(-0.5f * (x * x));
  const float t = reciprocal(1.0f + 0.35f * a);
  float ratio = -0.0730580389f;
  ratio = ratio * t + 0.360883623f;
  ratio = ratio * t - 0.640980780f;
  ratio = ratio * t + 0.398990691f;
  ratio = ratio * t - 0.0579279400f;
  ratio = ratio * t + 0.264469415f;
  ratio = ratio * t + 0.300376445f;
  ratio = ratio * t + 0.350581706f;
  ratio = ratio * t + 0.349978954f;
  const float smaller = density * (ratio * t);
  return {x < 0 ? smaller : 1.0f - smaller, density};
}

struct ExactGeluForward {
  KOKKOS_FUNCTION float operator()(float x) const { return x * normal_distribution(x).value; }
};

struct ExactGeluBackward {
  KOKKOS_FUNCTION float operator()(float x, float dy) const {
    const Sigmoid s = normal_distribution(x);
    return dy * (s.value + x * s.derivative);
  }
};

struct SiluForward {
  KOKKOS_FUNCTION float operator()(float x) const { return x * sigmoid(x).value; }
};

struct SiluBackward {
  KOKKOS_FUNCTION float operator()(float x, float dy) const {
    const Sigmoid s = sigmoid(x);
    return dy * (s.value + x * s.derivative);
  }
};

struct SwigluForward {
  KOKKOS_FUNCTION float operator()(float gate, float up) const {
    return gate * sigmoid(gate).value * up;
  }
};

/// Returns the gradients of gate and up.
struct SwigluBackward {
  KOKKOS_FUNCTION Numbers<2> operator()(float gate, float up, float dy) const {
    const Sigmoid s = sigmoid(gate);
    return {{dy * up * (s.value + gate * s.derivative), dy * (gate * s.value)}};
  }
};

}  // namespace

template <class T>
void gelu_forward(const Stream& stream, Gelu form, std::int64_t count, const T* x, T* y) {
  const auto run = [&](const std::string& label, auto gelu) {
    for_each_element(stream, label, count, gelu, std::tuple(y), std::tuple(x));
  };
  form == Gelu::tanh ? run(gelu_forward_label, GeluForward{})
                     : run(gelu_exact_forward_label, ExactGeluForward{});
}
template void gelu_forward(const Stream&, Gelu, std::int64_t, const float*, float*);
template void gelu_forward(const Stream&, Gelu, std::int64_t, const BFloat16*, BFloat16*);
template void gelu_forward(const Stream&, Gelu, std::int64_t, const Float16*, Float16*);

template <class T>
void gelu_backward(const Stream& stream, Gelu form, std::int64_t count, const T* x, const T* dy,
                   T* dx) {
  const auto run = [&](const std::string& label, auto gelu) {
    for_each_element(stream, label, count, gelu, std::tuple(dx), std::tuple(x, dy));
  };
  form == Gelu::tanh ? run(gelu_backward_label, GeluBackward{})
                     : run(gelu_exact_backward_label, ExactGeluBackward{});
}
template void gelu_backward(const Stream&, Gelu, std::int64_t, const float*, const float*, float*);
template void gelu_backward(const Stream&, Gelu, std::int64_t, const BFloat16*, const BFloat16*,
                            BFloat16*);
template void gelu_backward(const Stream&, Gelu, std::int64_t, const Float16*, const Float16*,
                            Float16*);

template <class T>
void silu_forward(const Stream& stream, std::int64_t count, const T* x, T* y) {
  for_each_element(stream, silu_forward_label, count, SiluForward{}, std::tuple(y), std::tuple(x));
}
template void silu_forward(const Stream&, std::int64_t, const float*, float*);
template void silu_forward(const Stream&, std::int64_t, const BFloat16*, BFloat16*);
template void silu_forward(const Stream&, std::int64_t, const Float16*, Float16*);

template <class T>
void silu_backward(const Stream& stream, std::int64_t count, const T* x, const T* dy, T* dx) {
  for_each_element(stream, silu_backward_label, count, SiluBackward{}, std::tuple(dx),
                   std::tuple(x, dy));
}
template void silu_backward(const Stream&, std::int64_t, const float*, const float*, float*);
template void silu_backward(const Stream&, std::int64_t, const BFloat16*, const BFloat16*,
                            BFloat16*);
template void silu_backward(const Stream&, std::int64_t, const Float16*, const Float16*, Float16*);

template <class T>
void swiglu_forward(const Stream& stream, std::int64_t rows, std::int64_t width, const T* x, T* y) {
  for_each_element(
      stream, swiglu_forward_label, rows, width, SwigluForward{}, std::tuple(Matrix<T>{y, width}),
      std::tuple(Matrix<const T>{x, 2 * width}, Matrix<const T>{x + width, 2 * width}));
}
template void swiglu_forward(const Stream&, std::int64_t, std::int64_t, const float*, float*);
template void swiglu_forward(const Stream&, std::int64_t, std::int64_t, const BFloat16*, BFloat16*);
template void swiglu_forward(const Stream&, std::int64_t, std::int64_t, const Float16*, Float16*);

template <class T>
void swiglu_backward(const Stream& stream, std::int64_t rows, std::int64_t width, const T* x,
                     const T* dy, T* dx) {
  for_each_element(stream, swiglu_backward_label, rows, width, SwigluBackward{},
                   std::tuple(Matrix<T>{dx, 2 * width}, Matrix<T>{dx + width, 2 * width}),
                   std::tuple(Matrix<const T>{x, 2 * width}, Matrix<const T>{x + width, 2 * width},
                              Matrix<const T>{dy, width}));
}
template void swiglu_backward(const Stream&, std::int64_t, std::int64_t, const float*, const float*,
                              float*);
template void swiglu_backward(const Stream&, std::int64_t, std::int64_t, const BFloat16*,
                              const BFloat16*, BFloat16*);
template void swiglu_backward(const Stream&, std::int64_t, std::int64_t, const Float16*,
                              const Float16*, Float16*);

}  // namespace trireme::kernels
