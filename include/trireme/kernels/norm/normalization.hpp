// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Shape of a batch norm or group norm over x [segments, rows, channels]. The channels form
/// `groups` groups of neighbors, each normalized over the rows of a segment.
/// Batch norm has one segment of batch * height * width rows and groups = channels. Group norm has
/// one segment per image.
struct NormShape {
  std::int64_t segments = 1, rows = 0, channels = 0, groups = 0;
  /// apply ReLU after the normalization (and the addition)
  bool relu = false;
  /// add a residual before the activation
  bool add = false;
};

/// Returns the rows of one partial sum on the host; a device uses at least as many. Depends on the
/// shape only, so that sums do not depend on the number of threads.
std::int64_t norm_chunk_rows(const NormShape&);
/// Elements of the three workspaces of a training step; forward and backward share them.
struct NormWorkspaceSizes {
  /// floats
  std::int64_t partials = 0;
  /// doubles
  std::int64_t channel_sums = 0;
  /// floats (backward only)
  std::int64_t coefficients = 0;
};
/// Returns the workspace sizes for a shape.
NormWorkspaceSizes norm_workspace_sizes(const NormShape&);
struct NormWorkspace {
  float* partials = nullptr;
  double* channel_sums = nullptr;
  float* coefficients = nullptr;
};

/// Arguments of norm_statistics(): mean, rstd, unbiased_variance (may be null) = [segments,
/// groups].
struct NormStatistics {
  float* mean = nullptr;
  float* rstd = nullptr;
  float* unbiased_variance = nullptr;
  float epsilon = 0;
};
/// Enqueues mean and variance of every group. Reads x once. The result is accurate for any ratio of
/// mean to standard deviation.
template <class T>
void norm_statistics(const Stream&, const NormShape&, const T* x, const NormWorkspace&,
                     const NormStatistics&);
/// Enqueues the statistics of a batch norm (one segment, groups = channels) from `sums` [2,
/// channels]: the sums of x and of its squares. Sets `sums` to 0.
/// Reads a channel of x only if cancellation leaves too few correct digits in its variance.
template <class T>
void norm_of_sums(const Stream&, const NormShape&, const T* x, float* sums, const NormStatistics&);

/// Enqueues the statistics of a batch norm (one segment, groups = channels) over `parts` (2 or
/// more) batches of shape.rows rows each, from `gathered` [parts, 2, channels]: mean and unbiased
/// variance of each batch. `gathered` must not overlap the results.
void norm_of_batches(const Stream&, const NormShape&, const float* gathered, int parts,
                     const NormStatistics&);

/// Returns the bytes of the ReLU mask that norm_apply() writes, one bit per element, so that
/// norm_backward() need not read y.
/// Returns 0 if the kernels of `target` are faster without a mask. A mask requires that all
/// activations are aligned to 16 bytes.
std::int64_t norm_mask_bytes(const NormShape&, std::int64_t element_bytes, DeviceKind target);

/// Arguments of norm_apply(): y = act(gamma * (x - mean) * rstd + beta [+ residual]). If `variance`
/// is set, rstd = 1 / sqrt(variance + epsilon).
template <class T>
struct NormApply {
  const T* x = nullptr;
  const T* residual = nullptr;
  T* y = nullptr;
  const float *gamma = nullptr, *beta = nullptr, *mean = nullptr, *rstd = nullptr,
              *variance = nullptr;
  float epsilon = 0;
  /// = one bit per element, unless null
  std::uint8_t* mask = nullptr;
};
/// Enqueues the normalization. Reads x and residual once and writes y once.
template <class T>
void norm_apply(const Stream&, const NormShape&, const NormApply<T>&);

/// The part of a batch in the running statistics [channels]: mean, variance = or += scale * (mean,
/// unbiased_variance) of the batch.
struct NormRunning {
  const float* unbiased_variance = nullptr;
  float *mean = nullptr, *variance = nullptr;
  float scale = 0;
};

/// Arguments of norm_backward(): dx =; dresidual = (only if shape.add); dgamma, dbeta and the
/// running statistics = or, if add_parameters, +=. `running` is empty for group norm.
/// With shape.relu the pass reads y, or the mask or beta in its place. dx or dresidual may be dy.
template <class T>
struct NormBackward {
  const T *x = nullptr, *y = nullptr, *dy = nullptr;
  T *dx = nullptr, *dresidual = nullptr;
  const float *gamma = nullptr, *beta = nullptr, *mean = nullptr, *rstd = nullptr;
  float *dgamma = nullptr, *dbeta = nullptr;
  NormRunning running;
  bool add_parameters = false;
  const std::uint8_t* mask = nullptr;
};
/// Enqueues the gradients in four launches. Reads x and the gradient twice (y or mask once) and
/// writes dx once.
template <class T>
void norm_backward(const Stream&, const NormShape&, const NormBackward<T>&, const NormWorkspace&);

// Two batch norms whose results are added in front of a ReLU: the last norm of a residual block and
// the norm of its shortcut (shape: one segment, groups = channels, relu, add).
//
//   y = relu(gamma * (x - mean) * rstd + beta  +  gamma' * (x' - mean') * rstd' + beta')
//
// Neither the shortcut's result nor the gradient behind the ReLU is written to memory.

/// The shortcut's norm.
template <class T>
struct ShortcutApply {
  const T* x = nullptr;
  const float *gamma = nullptr, *beta = nullptr, *mean = nullptr, *rstd = nullptr;
};
/// Enqueues y and its mask. `residual` and `variance` of the arguments are not used. Reads both x
/// once and writes y once.
template <class T>
void norm_apply_joined(const Stream&, const NormShape&, const NormApply<T>&,
                       const ShortcutApply<T>&);
/// Enqueues the gradients of both norms, in six launches on a device. Of the arguments, y, dy and
/// mask are those of `block`; dresidual is not used. dx of the shortcut may be dy. Reads both x and
/// dy twice (y or mask too) and writes both dx once. On the host norm_backward() runs for each.
template <class T>
void norm_backward_joined(const Stream&, const NormShape&, const NormBackward<T>& block,
                          const NormBackward<T>& shortcut, const NormWorkspace& of_block,
                          const NormWorkspace& of_shortcut);

/// The sums of batches that a batch norm has normalized together [parts, 2, channels], in an order
/// that all their ranks share.
struct NormBatchSums {
  const double* sums = nullptr;
  int parts = 1;
};
/// Enqueues the first two launches of norm_backward(): channel_sums = sum of g and of g * xhat over
/// this rank's batch, dresidual = (only if shape.add).
template <class T>
void norm_backward_sums(const Stream&, const NormShape&, const NormBackward<T>&,
                        const NormWorkspace&);
/// Enqueues the last two launches, behind norm_backward_sums() with the same arguments: dx = from
/// the sums of all batches; dgamma and dbeta from channel_sums, this rank's own.
template <class T>
void norm_backward_input(const Stream&, const NormShape&, const NormBackward<T>&,
                         const NormWorkspace&, const NormBatchSums& batches);

}  // namespace trireme::kernels
