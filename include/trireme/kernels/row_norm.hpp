#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Layer norm or, where `rms`, RMS norm over the rows of x [rows, width]; see ops/row_norm.hpp for
/// what it computes.
struct RowNormShape {
  std::int64_t rows = 0, width = 0;
  bool rms = false;
};

/// y =, mean = (not with rms), rstd =. beta may be null. y may be x.
template <class T>
struct RowNormForward {
  const T* x = nullptr;
  const float *gamma = nullptr, *beta = nullptr;
  T* y = nullptr;
  float *mean = nullptr, *rstd = nullptr;
  float epsilon = 0;
};
template <class T>
void row_norm_forward(const Stream&, const RowNormShape&, const RowNormForward<T>&);

/// Floats of the workspace of a backward pass: sums of dgamma's and dbeta's terms over chunks of
/// rows.
std::int64_t row_norm_partial_count(const RowNormShape&);

/// dx = gradient + dresidual (which may be null); dgamma, dbeta (may be null) = or +=
/// (add_parameters). mean is not read with rms. dx may be dy or dresidual.
template <class T>
struct RowNormBackward {
  const T *x = nullptr, *dy = nullptr, *dresidual = nullptr;
  const float *gamma = nullptr, *mean = nullptr, *rstd = nullptr;
  T* dx = nullptr;
  float *dgamma = nullptr, *dbeta = nullptr;
  bool add_parameters = false;
  float* partials = nullptr;  ///< workspace
};
template <class T>
void row_norm_backward(const Stream&, const RowNormShape&, const RowNormBackward<T>&);

}  // namespace trireme::kernels
