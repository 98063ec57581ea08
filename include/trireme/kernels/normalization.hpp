#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// x [segments, rows, channels]; the channels, in `groups` groups of neighbours, are normalised
/// over the rows of a segment. Batch norm is one segment of B*H*W rows with groups = channels;
/// group norm has a segment an image.
struct NormShape {
  std::int64_t segments = 1, rows = 0, channels = 0, groups = 0;
  bool relu = false;  ///< ReLU behind the normalisation (and the addition)
  bool add = false;   ///< a residual is added before the activation
};

/// Rows of one partial sum on the host, no more than a device's: a function of the shape alone, so
/// that sums do not depend on the number of threads.
std::int64_t norm_chunk_rows(const NormShape&);
/// Elements of the three pieces of workspace that both directions of a training step take.
struct NormWorkspaceSizes {
  std::int64_t partials = 0;      ///< float
  std::int64_t channel_sums = 0;  ///< double
  std::int64_t coefficients = 0;  ///< float (backward only)
};
NormWorkspaceSizes norm_workspace_sizes(const NormShape&);
struct NormWorkspace {
  float* partials = nullptr;
  double* channel_sums = nullptr;
  float* coefficients = nullptr;
};

/// mean, rstd, unbiased_variance (may be null): = [segments, groups].
struct NormStatistics {
  float* mean = nullptr;
  float* rstd = nullptr;
  float* unbiased_variance = nullptr;
  float epsilon = 0;
};
template <class T>
void norm_statistics(const Stream&, const NormShape&, const T* x, const NormWorkspace&,
                     const NormStatistics&);
/// The same of a batch norm (one segment, groups = channels) from `sums` [2, channels] of x and of
/// its squares. x is read where they hold too few digits.
template <class T>
void norm_of_sums(const Stream&, const NormShape&, const T* x, const float* sums,
                  const NormStatistics&);

/// Bytes of the mask in which norm_apply leaves, a bit an element, what the ReLU let through, so
/// that norm_backward need not read y; 0 where the kernels of `target` do better without. A mask
/// wants all activations to begin on multiples of 16 bytes.
std::int64_t norm_mask_bytes(const NormShape&, std::int64_t element_bytes, DeviceKind target);

/// y = act(gamma * (x - mean) * rstd + beta [+ residual]); where `variance` is given, rstd = 1 /
/// sqrt(variance + epsilon).
template <class T>
struct NormApply {
  const T* x = nullptr;
  const T* residual = nullptr;
  T* y = nullptr;
  const float *gamma = nullptr, *beta = nullptr, *mean = nullptr, *rstd = nullptr,
              *variance = nullptr;
  float epsilon = 0;
  std::uint8_t* mask = nullptr;  ///< written where not null
};
template <class T>
void norm_apply(const Stream&, const NormShape&, const NormApply<T>&);

/// dx =, dresidual = (where add), dgamma and dbeta = or += (add_parameters). Where relu, y is read,
/// or in its place the mask or beta. dx or dresidual may be dy.
template <class T>
struct NormBackward {
  const T *x = nullptr, *y = nullptr, *dy = nullptr;
  T *dx = nullptr, *dresidual = nullptr;
  const float *gamma = nullptr, *beta = nullptr, *mean = nullptr, *rstd = nullptr;
  float *dgamma = nullptr, *dbeta = nullptr;
  bool add_parameters = false;
  const std::uint8_t* mask = nullptr;
};
template <class T>
void norm_backward(const Stream&, const NormShape&, const NormBackward<T>&, const NormWorkspace&);

}  // namespace trireme::kernels
