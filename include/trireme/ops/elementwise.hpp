// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Enqueues y = max(x, 0).
void relu_forward(Context&, const Tensor& x, const Tensor& y);
/// Enqueues dx = dy where y > 0, else 0. dx may be the memory of dy.
void relu_backward(Context&, const Tensor& y, const Tensor& dy, const Tensor& dx);
/// Enqueues y += x for two tensors of one dtype: float32, bfloat16 or float16 (added in float32),
/// or int32.
void add(Context&, const Tensor& x, const Tensor& y);
/// Enqueues y = x in y's dtype (float32, bfloat16 or float16), rounded to nearest even. Either x or
/// y is float32, or both have one dtype.
void cast(Context&, const Tensor& x, const Tensor& y);
/// Enqueues y = or += x, where the last extents differ, in one dtype: further channels of x are
/// dropped, further channels of y are 0 (or stay as they are).
void change_channels(Context&, const Tensor& x, const Tensor& y, Write);
/// Enqueues y = value for float32, bfloat16, float16 and int32.
void fill(Context&, const Tensor& y, float value);
/// Enqueues y = x byte for byte. x and y may be on different devices.
void copy(Context&, const Tensor& x, const Tensor& y);
/// Enqueues y = a x + b z, computed in float32: x and y of one dtype (float32, bfloat16), z
/// float32. y may be x.
void weighted_sum(Context&, float a, const Tensor& x, float b, const Tensor& z, const Tensor& y);
/// Enqueues a swap of the contents of x and y (float32), bit for bit.
void swap(Context&, const Tensor& x, const Tensor& y);
/// Enqueues y = or += scale * x, both float32.
void scaled_copy(Context&, const Tensor& x, float scale, const Tensor& y, Write);

/// Enqueues y [rows, width] = x + bias (float32 [width]). x has y's dtype or is float32; y may be x
/// if their dtypes are equal.
void add_bias(Context&, const Tensor& bias, const Tensor& x, const Tensor& y);
/// Enqueues sums (float32 [width]) = or += the column sums of dy [rows, width], the gradient of a
/// bias. The bits do not depend on the number of threads.
void column_sums(Context&, const Tensor& dy, const Tensor& sums, Write);

/// Enqueues y = scale * x + residual by columns, the end of a branch with LayerScale (Touvron et
/// al. 2021, "Going deeper with Image Transformers"). x, residual and y are [rows, width] of one
/// dtype, scale is float32 [width]. y may be the memory of x or residual.
void layer_scale_forward(Context&, const Tensor& scale, const Tensor& x, const Tensor& residual,
                         const Tensor& y);
/// Enqueues dx = scale * dy, and dscale (float32 [width]) = or += the column sums of x * dy.
/// dscale may be undefined. dx may be the memory of dy. Takes a float32 workspace of x's shape.
void layer_scale_backward(Context&, const Tensor& scale, const Tensor& x, const Tensor& dy,
                          const Tensor& dx, const Tensor& dscale, Write);

}  // namespace trireme::ops
