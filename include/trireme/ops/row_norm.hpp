#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

constexpr float row_norm_epsilon =
    1e-5f;  // of layer norm and of RMS norm alike, docs/contract section 7

/// Layer norm (Ba et al. 2016) over the last dimension of x [rows, width]: y = (x - mean) * rstd *
/// gamma + beta, with the biased variance; RMS norm (Zhang & Sennrich 2019) where `rms`: y = x *
/// rstd * gamma, rstd = 1 / sqrt(mean of squares + epsilon).
struct RowNorm {
  std::int64_t rows = 0, width = 0;
  bool rms = false;
  DType dtype = DType::float32;  ///< of x, y and their gradients: float32, bfloat16 or float16;
                                 ///< everything else is float32
};

/// gamma, beta float32 [width] (beta undefined: none); mean (undefined with rms) and rstd float32
/// [rows] are left for backward. y may be x.
void row_norm_forward(Context&, const RowNorm&, const Tensor& x, const Tensor& gamma,
                      const Tensor& beta, const Tensor& y, const Tensor& mean, const Tensor& rstd);
/// dx = gradient of x, plus dresidual where that is defined: the gradient that comes round the norm
/// on the residual branch. dx may be the memory of dy or of dresidual. dgamma, dbeta (float32
/// [width]; dbeta undefined: none) = or +=, summed in a fixed order of row chunks, independent of
/// the number of threads.
void row_norm_backward(Context&, const RowNorm&, const Tensor& x, const Tensor& dy,
                       const Tensor& gamma, const Tensor& mean, const Tensor& rstd,
                       const Tensor& dresidual, const Tensor& dx, const Tensor& dgamma,
                       const Tensor& dbeta, Write);

}  // namespace trireme::ops
