#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

void relu_forward(Context&, const Tensor& x, const Tensor& y);
/// dx = dy where y > 0, else 0; dx may be dy.
void relu_backward(Context&, const Tensor& y, const Tensor& dy, const Tensor& dx);
/// y += x, same dtype (float32 or bfloat16, added in float32).
void add(Context&, const Tensor& x, const Tensor& y);
/// y = x in y's dtype (float32, bfloat16), rounded to nearest even.
void cast(Context&, const Tensor& x, const Tensor& y);
/// y = value.
void fill(Context&, const Tensor& y, float value);
/// y = x, byte for byte.
void copy(Context&, const Tensor& x, const Tensor& y);

}  // namespace trireme::ops
