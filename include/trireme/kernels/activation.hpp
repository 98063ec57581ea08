// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// The forms of GELU (Hendrycks and Gimpel 2016).
enum class Gelu : std::uint8_t {
  tanh,   ///< x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  exact,  ///< x/2 (1 + erf(x / sqrt(2)))
};

/// y = gelu(x).
template <class T>
void gelu_forward(const Stream&, Gelu, std::int64_t count, const T* x, T* y);
/// dx = dy * gelu'(x). dx may be dy or x.
template <class T>
void gelu_backward(const Stream&, Gelu, std::int64_t count, const T* x, const T* dy, T* dx);

/// y = x / (1 + exp(-x)).
template <class T>
void silu_forward(const Stream&, std::int64_t count, const T* x, T* y);
/// dx = dy * silu'(x). dx may be dy or x.
template <class T>
void silu_backward(const Stream&, std::int64_t count, const T* x, const T* dy, T* dx);

/// y [rows, width] = silu(gate) * up (Shazeer 2020), where x [rows, 2 width] holds gate, then up,
/// in each row.
template <class T>
void swiglu_forward(const Stream&, std::int64_t rows, std::int64_t width, const T* x, T* y);
/// dx [rows, 2 width] = gradients of gate and up. dx may be x.
template <class T>
void swiglu_backward(const Stream&, std::int64_t rows, std::int64_t width, const T* x, const T* dy,
                     T* dx);

}  // namespace trireme::kernels
