// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// y = max(x, 0); a NaN stays a NaN. y may be x.
template <class T>
void relu_forward(const Stream&, std::int64_t count, const T* x, T* y);
/// dx = dy where y > 0, else 0. dx may be dy.
template <class T>
void relu_backward(const Stream&, std::int64_t count, const T* y, const T* dy, T* dx);
/// y += x, added in float32: from float32, bfloat16 or float16 to the same type, and from bfloat16
/// to float32. int32 to int32 is exact, float64 to float64 is added in float64.
template <class From, class To>
void add(const Stream&, std::int64_t count, const From* x, To* y);
/// y = x, rounded to nearest.
template <class From, class To>
void cast(const Stream&, std::int64_t count, const From* x, To* y);
/// y [rows, to] = x [rows, from] or, if `add`, y += x: further channels of x are dropped, further
/// channels of y are 0 (`add`: stay as they are). Added in float32. For small arrays.
template <class T>
void change_channels(const Stream&, std::int64_t rows, std::int64_t from, const T* x,
                     std::int64_t to, T* y, bool add);
/// y = value (float32, bfloat16, float16, int32).
template <class T>
void fill(const Stream&, std::int64_t count, float value, T* y);
/// y = x, byte by byte. The buffers must not overlap.
void copy(const Stream&, std::int64_t bytes, const void* x, void* y);
/// Swaps x and y, bit by bit.
void swap(const Stream&, std::int64_t count, float* x, float* y);
/// y = scale * x or, if `add`, y += scale * x.
void scaled_copy(const Stream&, std::int64_t count, const float* x, float scale, bool add,
                 float* y);
/// y = a x + b z, computed in float32. y may be x.
template <class T>
void weighted_sum(const Stream&, std::int64_t count, float a, const T* x, float b, const float* z,
                  T* y);
/// y [rows, width] = x + bias [width], added in float32. y may be x if both have one type.
template <class From, class To>
void add_bias(const Stream&, std::int64_t rows, std::int64_t width, const float* bias,
              const From* x, To* y);
/// y = scale [width] * x + residual, all [rows, width]. y may be x or residual.
template <class T>
void layer_scale_forward(const Stream&, std::int64_t rows, std::int64_t width, const float* scale,
                         const T* x, const T* residual, T* y);
/// dx = scale [width] * dy and product = x * dy, all [rows, width]. dx may be dy.
template <class T>
void layer_scale_backward(const Stream&, std::int64_t rows, std::int64_t width, const float* scale,
                          const T* x, const T* dy, T* dx, float* product);

}  // namespace trireme::kernels
