// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Layer norm or RMS norm over the last dimension of x [rows, width].
///   layer norm (Ba et al. 2016)         y = (x - mean) * rstd * gamma + beta with
///                                       rstd = 1 / sqrt(biased variance + epsilon)
///   `rms` (Zhang & Sennrich 2019)       y = x * rstd * gamma with
///                                       rstd = 1 / sqrt(mean of squares + epsilon)
struct RowNorm {
  std::int64_t rows = 0, width = 0;
  bool rms = false;
  /// Type of x, y and their gradients: float32, bfloat16 or float16. Everything else is float32.
  DType dtype = DType::float32;
  double epsilon = 1e-5;  ///< is rounded to float32
};

/// Enqueues y, and mean (undefined with rms) and rstd, float32 [rows], for backward. gamma and beta
/// are float32 [width]; an undefined beta is 0. y may be x.
void row_norm_forward(Context&, const RowNorm&, const Tensor& x, const Tensor& gamma,
                      const Tensor& beta, const Tensor& y, const Tensor& mean, const Tensor& rstd);
/// Enqueues the gradients. dx = the gradient of x, plus dresidual if it is defined: the gradient of
/// the residual branch. dx may be the memory of dy or of dresidual. dgamma and dbeta (float32
/// [width]; dbeta undefined: none) = or += sums in a fixed order of row chunks, so the bits do not
/// depend on the number of threads.
void row_norm_backward(Context&, const RowNorm&, const Tensor& x, const Tensor& dy,
                       const Tensor& gamma, const Tensor& mean, const Tensor& rstd,
                       const Tensor& dresidual, const Tensor& dx, const Tensor& dgamma,
                       const Tensor& dbeta, Write);

}  // namespace trireme::ops
