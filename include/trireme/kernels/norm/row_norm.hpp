// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Shape of a layer norm (Ba et al. 2016) or, if `rms`, an RMS norm (Zhang and Sennrich 2019), over
/// the rows of x [rows, width].
/// The formulas are in ops/row_norm.hpp, whose functions check the arguments.
struct RowNormShape {
  std::int64_t rows = 0, width = 0;
  bool rms = false;
};

/// Arguments of row_norm_forward(): y =, mean = [rows] (not written if `rms`), rstd = [rows]. beta
/// may be null. y may be x.
template <class T>
struct RowNormForward {
  const T* x = nullptr;
  const float *gamma = nullptr, *beta = nullptr;
  T* y = nullptr;
  float *mean = nullptr, *rstd = nullptr;
  float epsilon = 0;
};
/// Enqueues the forward pass. Reads x once from memory and writes y once.
template <class T>
void row_norm_forward(const Stream&, const RowNormShape&, const RowNormForward<T>&);

/// Returns the number of floats in the workspace `partials` of row_norm_backward().
std::int64_t row_norm_partial_count(const RowNormShape&);

/// Arguments of row_norm_backward(). dx = gradient of x + dresidual, which may be null.
/// The gradients dgamma, dbeta (may be null) = or, if add_parameters, +=. mean is not read if
/// `rms`. dx may be dy or dresidual.
template <class T>
struct RowNormBackward {
  const T *x = nullptr, *dy = nullptr, *dresidual = nullptr;
  const float *gamma = nullptr, *mean = nullptr, *rstd = nullptr;
  T* dx = nullptr;
  float *dgamma = nullptr, *dbeta = nullptr;
  bool add_parameters = false;
  /// workspace [row_norm_partial_count]
  float* partials = nullptr;
};
/// Enqueues the backward pass. The order of all sums depends on the shape only, so results have the
/// same bits on any number of host threads.
template <class T>
void row_norm_backward(const Stream&, const RowNormShape&, const RowNormBackward<T>&);

}  // namespace trireme::kernels
