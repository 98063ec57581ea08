#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

// Tensors of one dtype, float32, bfloat16 or float16; the arithmetic is float32.

/// y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GELU in its tanh form (Hendrycks & Gimpel
/// 2016), as GPT-2's. y may not be x: backward reads x.
void gelu_forward(Context&, const Tensor& x, const Tensor& y);
/// dx = dy times the derivative at x; dx may be dy.
void gelu_backward(Context&, const Tensor& x, const Tensor& dy, const Tensor& dx);

/// x [rows, 2 w]: gate in the first w columns, up in the last; y [rows, w] = silu(gate) * up,
/// silu(g) = g / (1 + exp(-g)) (Shazeer 2020).
void swiglu_forward(Context&, const Tensor& x, const Tensor& y);
/// dx [rows, 2 w] = the gradients of gate and up; dx may be x.
void swiglu_backward(Context&, const Tensor& x, const Tensor& dy, const Tensor& dx);

}  // namespace trireme::ops
