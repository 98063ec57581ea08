#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// y = max(x, 0); a NaN goes through. y may be x.
template <class T>
void relu_forward(const Stream&, std::int64_t count, const T* x, T* y);
/// dx = dy where y > 0, else 0. dx may be dy.
template <class T>
void relu_backward(const Stream&, std::int64_t count, const T* y, const T* dy, T* dx);
/// y += x: float32, bfloat16 and float16, and bfloat16 to float32, in float32; int32.
template <class From, class To>
void add(const Stream&, std::int64_t count, const From* x, To* y);
/// y = x, rounded to the nearest.
template <class From, class To>
void cast(const Stream&, std::int64_t count, const From* x, To* y);
/// y = value (float32, bfloat16, float16, int32).
template <class T>
void fill(const Stream&, std::int64_t count, float value, T* y);
/// y = x, byte for byte.
void copy(const Stream&, std::int64_t bytes, const void* x, void* y);
/// x and y change places, bit for bit.
void swap(const Stream&, std::int64_t count, float* x, float* y);
/// y = or += (add) scale * x.
void scaled_copy(const Stream&, std::int64_t count, const float* x, float scale, bool add,
                 float* y);
/// y [rows, width] = x + bias [width], added in float32. y may be x where their types are one.
template <class From, class To>
void add_bias(const Stream&, std::int64_t rows, std::int64_t width, const float* bias,
              const From* x, To* y);

}  // namespace trireme::kernels
