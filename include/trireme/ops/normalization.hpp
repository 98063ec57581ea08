#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

constexpr float batch_norm_epsilon = 1e-5f;  // PyTorch's, docs/contract section 7

/// Batch norm over all but the last dimension of x [.., C], with the addition of a residual and the
/// ReLU that follow it in a residual block folded in: y = act(gamma * (x - mean) * rstd + beta [+
/// residual]).
struct BatchNorm {
  std::int64_t rows = 0, channels = 0;  ///< rows = B*H*W
  bool relu = false;
  bool add = false;  ///< a residual is added before the activation
  DType dtype =
      DType::float32;  ///< of x, residual, y and their gradients; everything else is float32
};

/// Elements (uint8) of the mask that forward leaves for backward where the context's target gains
/// by it; 0: none, an undefined tensor stands for it. Where a mask is given, backward reads it in
/// place of y.
std::int64_t batch_norm_mask_elements(const Context&, const BatchNorm&);

/// What training needs to know of x, float32 [C] each: mean and rstd, which are left for backward,
/// and the batch's unbiased variance for the running one.
struct BatchStatistics {
  Tensor mean, rstd, unbiased_variance;
};
/// Sums are taken in a fixed order of row chunks, independent of the number of threads.
void batch_norm_statistics(Context&, const BatchNorm&, const Tensor& x, const BatchStatistics&);
/// From the sums of x's channels and of their squares, float32 [2, C], however they were added up.
/// x is read only of channels whose mean is so large against their standard deviation that the sums
/// do not tell it.
void batch_norm_statistics_of_sums(Context&, const BatchNorm&, const Tensor& x, const Tensor& sums,
                                   const BatchStatistics&);
/// Training: y of x and its statistics.
void batch_norm_apply(Context&, const BatchNorm&, const Tensor& x, const Tensor& gamma,
                      const Tensor& beta, const Tensor& residual, const Tensor& y,
                      const BatchStatistics&, const Tensor& mask);
/// Evaluation: with the running mean and variance.
void batch_norm_inference(Context&, const BatchNorm&, const Tensor& x, const Tensor& gamma,
                          const Tensor& beta, const Tensor& residual, const Tensor& running_mean,
                          const Tensor& running_variance, const Tensor& y);
/// dx = ; dresidual = (where add; the gradient behind the activation) ; dgamma, dbeta = or +=. `y`
/// is forward's output; where relu it is read, or made again of x. dx and dresidual may be the
/// memory of dy, but not each other's.
void batch_norm_backward(Context&, const BatchNorm&, const Tensor& x, const Tensor& y,
                         const Tensor& dy, const Tensor& gamma, const Tensor& beta,
                         const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                         const Tensor& dresidual, const Tensor& dgamma, const Tensor& dbeta,
                         const Tensor& mask, Write);

/// Group norm of x [B, P, C] (P pixels) over the pixels and the channels of each of `groups` groups
/// (Wu & He 2018), with the same additions.
struct GroupNorm {
  std::int64_t batch = 0, pixels = 0, channels = 0, groups = 32;
  bool relu = false;
  bool add = false;
  DType dtype = DType::float32;
};
std::int64_t group_norm_mask_elements(const Context&, const GroupNorm&);
/// mean, rstd: float32 [B, groups].
void group_norm_forward(Context&, const GroupNorm&, const Tensor& x, const Tensor& gamma,
                        const Tensor& beta, const Tensor& residual, const Tensor& y,
                        const Tensor& mean, const Tensor& rstd, const Tensor& mask);
/// As batch_norm_backward.
void group_norm_backward(Context&, const GroupNorm&, const Tensor& x, const Tensor& y,
                         const Tensor& dy, const Tensor& gamma, const Tensor& beta,
                         const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                         const Tensor& dresidual, const Tensor& dgamma, const Tensor& dbeta,
                         const Tensor& mask, Write);

}  // namespace trireme::ops
