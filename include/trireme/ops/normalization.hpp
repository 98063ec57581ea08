// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// The same as PyTorch's (docs/reference/numerics.md).
constexpr float batch_norm_epsilon = 1e-5f;

/// Batch norm over all but the last dimension of x [.., C]: y = act(gamma * (x - mean) * rstd +
/// beta [+ residual]). The residual and the ReLU that follow the norm in a residual block are part
/// of the op.
struct BatchNorm {
  std::int64_t rows = 0, channels = 0;  ///< rows = B*H*W
  bool relu = false;
  bool add = false;  ///< a residual is added before the activation
  /// Type of x, residual, y and their gradients. Everything else is float32.
  DType dtype = DType::float32;
};

/// Returns the number of elements (uint8) of the ReLU mask that forward writes for backward. 0:
/// this target is faster without a mask; pass an undefined tensor. With a mask, backward reads the
/// mask instead of y.
std::int64_t batch_norm_mask_elements(const Context&, const BatchNorm&);

/// Statistics of x in training, float32 [C] each: mean and rstd, which backward needs, and the
/// batch's unbiased variance, which updates the running variance.
struct BatchStatistics {
  Tensor mean, rstd, unbiased_variance;
};
/// The ranks that compute a batch norm together, each on its own batch of as many rows. A rank
/// alone is a group of one.
struct BatchGroup {
  int rank = 0, size = 1;
  /// Enqueues the gather of all [size, ..], of which each rank has written row `rank`. Work
  /// enqueued later on the stream of the context finds all rows. Collective over the group, in the
  /// same order on all ranks. Empty for a group of one.
  std::function<void(const Tensor& all)> gather = {};
};
/// Enqueues the statistics of x. Sums are taken in a fixed order of row chunks, so the bits do not
/// depend on the number of threads.
void batch_norm_statistics(Context&, const BatchNorm&, const Tensor& x, const BatchStatistics&);
/// Enqueues the statistics from the sums of x's channels and of their squares, float32 [2, C], and
/// sets the sums to 0. x is read only in channels whose mean is so large against their standard
/// deviation that the sums have lost the variance.
void batch_norm_statistics_of_sums(Context&, const BatchNorm&, const Tensor& x, const Tensor& sums,
                                   const BatchStatistics&);
/// Gathers the statistics of the batches of a group, float32 [size, 2, C]: mean and unbiased
/// variance of each, of which this rank has written its own. Enqueues the statistics of all batches
/// together, with the same bits on all ranks (Chan, Golub and LeVeque 1983). `joined` is other
/// memory.
void batch_norm_join(Context&, const BatchNorm&, const BatchGroup&, const Tensor& all,
                     const BatchStatistics& joined);
/// Enqueues y in training, from x and its statistics. `mask` has batch_norm_mask_elements()
/// elements.
void batch_norm_apply(Context&, const BatchNorm&, const Tensor& x, const Tensor& gamma,
                      const Tensor& beta, const Tensor& residual, const Tensor& y,
                      const BatchStatistics&, const Tensor& mask);
/// Enqueues y in evaluation, from the running mean and variance.
void batch_norm_inference(Context&, const BatchNorm&, const Tensor& x, const Tensor& gamma,
                          const Tensor& beta, const Tensor& residual, const Tensor& running_mean,
                          const Tensor& running_variance, const Tensor& y);
/// The part of a batch in the running statistics, float32 [C] each: mean and variance = or +=
/// scale * (mean, unbiased variance) of the batch. Other memory than the batch's statistics.
struct RunningStatistics {
  Tensor mean, variance;
  float scale = 1;
};
/// Enqueues the gradients: dx =, dresidual = (if `add`; the gradient after the activation), dgamma
/// and dbeta = or +=; and the running statistics. `y` is forward's output; with `relu` it is read,
/// or recomputed from x. dx and dresidual may be the memory of dy, but must differ.
///
/// With a group the statistics are those of batch_norm_join(), and dx is the gradient with respect
/// to this rank's part of the batch: the group gathers two sums of each channel. dgamma and dbeta
/// are sums over this rank's rows.
void batch_norm_backward(Context&, const BatchNorm&, const Tensor& x, const Tensor& y,
                         const Tensor& dy, const Tensor& gamma, const Tensor& beta,
                         const BatchStatistics&, const Tensor& dx, const Tensor& dresidual,
                         const Tensor& dgamma, const Tensor& dbeta, const RunningStatistics&,
                         const Tensor& mask, Write, const BatchGroup& = {});

/// The tensors of one of two batch norms whose results are added in front of a ReLU; those of
/// forward only need x, gamma, beta and statistics. dgamma, dbeta and running: as in
/// batch_norm_backward().
struct JoinedBatchNorm {
  Tensor x, gamma, beta;
  BatchStatistics statistics;
  Tensor dx = {}, dgamma = {}, dbeta = {};
  RunningStatistics running = {};
};
/// Enqueues y = relu(norm of block.x + norm of shortcut.x), in training: the end of a residual
/// block and the norm of its shortcut, whose result is not written. `op` has relu and add.
void batch_norm_apply_joined(Context&, const BatchNorm& op, const JoinedBatchNorm& block,
                             const JoinedBatchNorm& shortcut, const Tensor& y, const Tensor& mask);
/// Enqueues the gradients of both norms. dx of the shortcut must be the memory of dy; on a GPU the
/// gradient behind the ReLU is not written.
void batch_norm_backward_joined(Context&, const BatchNorm& op, const JoinedBatchNorm& block,
                                const JoinedBatchNorm& shortcut, const Tensor& y, const Tensor& dy,
                                const Tensor& mask, Write);

/// Group norm of x [B, P, C] (P pixels) over the pixels and the channels of each of `groups` groups
/// (Wu & He 2018), with the same residual and ReLU.
struct GroupNorm {
  std::int64_t batch = 0, pixels = 0, channels = 0, groups = 32;
  bool relu = false;
  bool add = false;
  DType dtype = DType::float32;
};
/// As batch_norm_mask_elements. All functions of group norm throw InputError if `groups` is not a
/// divisor of `channels`.
std::int64_t group_norm_mask_elements(const Context&, const GroupNorm&);
/// Enqueues y with its statistics mean and rstd, float32 [B, groups].
void group_norm_forward(Context&, const GroupNorm&, const Tensor& x, const Tensor& gamma,
                        const Tensor& beta, const Tensor& residual, const Tensor& y,
                        const Tensor& mean, const Tensor& rstd, const Tensor& mask);
/// Enqueues the gradients, as batch_norm_backward does.
void group_norm_backward(Context&, const GroupNorm&, const Tensor& x, const Tensor& y,
                         const Tensor& dy, const Tensor& gamma, const Tensor& beta,
                         const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                         const Tensor& dresidual, const Tensor& dgamma, const Tensor& dbeta,
                         const Tensor& mask, Write);

}  // namespace trireme::ops
