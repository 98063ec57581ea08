#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

void relu_forward(Context&, const Tensor& x, const Tensor& y);
/// dx = dy where y > 0, else 0; dx may be dy.
void relu_backward(Context&, const Tensor& y, const Tensor& dy, const Tensor& dx);
/// y += x, same dtype (float32, bfloat16 or float16, added in float32; int32).
void add(Context&, const Tensor& x, const Tensor& y);
/// y = x in y's dtype (float32, bfloat16, float16), rounded to nearest even.
void cast(Context&, const Tensor& x, const Tensor& y);
/// y = value (float32, bfloat16, float16, int32).
void fill(Context&, const Tensor& y, float value);
/// y = x, byte for byte.
void copy(Context&, const Tensor& x, const Tensor& y);
/// x and y (float32) change places, bit for bit.
void swap(Context&, const Tensor& x, const Tensor& y);
/// y = or += scale * x, both float32.
void scaled_copy(Context&, const Tensor& x, float scale, const Tensor& y, Write);

/// y [rows, width] = x + bias (float32 [width]); x in y's dtype or float32. y may be x where their
/// dtypes are one.
void add_bias(Context&, const Tensor& bias, const Tensor& x, const Tensor& y);
/// sums (float32 [width]) = or += the sums of the columns of dy [rows, width], the gradient of such
/// a bias: the same bits at any number of threads.
void column_sums(Context&, const Tensor& dy, const Tensor& sums, Write);

}  // namespace trireme::ops
