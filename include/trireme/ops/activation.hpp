// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/kernels/activation.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

using kernels::Gelu;

// x, y and their gradients have one dtype: float32, bfloat16 or float16. The arithmetic is float32.

/// Writes y = gelu(x) (Hendrycks & Gimpel 2016), in the tanh form as in GPT-2 or in the exact one
/// as in ViT. y must not be the memory of x, because backward reads x.
void gelu_forward(Context&, const Tensor& x, const Tensor& y, Gelu form = Gelu::tanh);
/// Writes dx = dy times GELU's derivative at x. dx may be the memory of dy.
void gelu_backward(Context&, const Tensor& x, const Tensor& dy, const Tensor& dx,
                   Gelu form = Gelu::tanh);

/// Writes y = x / (1 + exp(-x)) (Hendrycks & Gimpel 2016). y must not be the memory of x, because
/// backward reads x.
void silu_forward(Context&, const Tensor& x, const Tensor& y);
/// Writes dx = dy times the derivative at x. dx may be the memory of dy.
void silu_backward(Context&, const Tensor& x, const Tensor& dy, const Tensor& dx);

/// Writes y [rows, w] = silu(gate) * up with silu(g) = g / (1 + exp(-g)) (Shazeer 2020). x [rows, 2
/// w] holds the gate in its first w columns and `up` in its last w.
void swiglu_forward(Context&, const Tensor& x, const Tensor& y);
/// Writes dx [rows, 2 w], the gradients of gate and up. dx may be the memory of x.
void swiglu_backward(Context&, const Tensor& x, const Tensor& dy, const Tensor& dx);

}  // namespace trireme::ops
