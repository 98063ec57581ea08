// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// y = gelu(x) in the tanh form (Hendrycks and Gimpel 2016).
template <class T>
void gelu_forward(const Stream&, std::int64_t count, const T* x, T* y);
/// dx = dy * gelu'(x). dx may be dy or x.
template <class T>
void gelu_backward(const Stream&, std::int64_t count, const T* x, const T* dy, T* dx);

/// y [rows, width] = silu(gate) * up (Shazeer 2020), where x [rows, 2 width] holds gate, then up,
/// in each row.
template <class T>
void swiglu_forward(const Stream&, std::int64_t rows, std::int64_t width, const T* x, T* y);
/// dx [rows, 2 width] = gradients of gate and up. dx may be x.
template <class T>
void swiglu_backward(const Stream&, std::int64_t rows, std::int64_t width, const T* x, const T* dy,
                     T* dx);

}  // namespace trireme::kernels
