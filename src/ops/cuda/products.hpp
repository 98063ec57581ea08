// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/convolution.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::ops::cuda {

// Products for contexts whose target is CUDA. The op has checked shapes and types and counted its
// work. On meta, in any build, the functions only take their workspace.

/// `bias` and `residual` are undefined if there is none.
void linear_forward(Context&, const Linear&, const Tensor& x, const Tensor& w, const Tensor& bias,
                    const Tensor& residual, const Tensor& y);
void linear_backward_data(Context&, const Linear&, const Tensor& dy, const Tensor& w,
                          const Tensor& dx);
void linear_backward_weight(Context&, const Linear&, const Tensor& x, const Tensor& dy,
                            const Tensor& dw, const Tensor& dbias, Write);
void linear_gelu_forward(Context&, const Linear&, const Tensor& x, const Tensor& w,
                         const Tensor& bias, const Tensor& z, const Tensor& y);
void linear_backward_data_gelu(Context&, const Linear&, const Tensor& dy, const Tensor& w,
                               const Tensor& z, const Tensor& dz);
void convolution_forward(Context&, const Convolution&, const Tensor& x, const Tensor& w,
                         const Tensor& y);
void convolution_statistics_forward(Context&, const Convolution&, const Tensor& x, const Tensor& w,
                                    const Tensor& y, const BatchStatistics&);
/// `addend` is undefined if there is none.
void convolution_backward_data(Context&, const Convolution&, const Tensor& dy, const Tensor& w,
                               const Tensor& addend, const Tensor& dx);
void convolution_backward_weight(Context&, const Convolution&, const Tensor& x, const Tensor& dy,
                                 const Tensor& dw, Write);

}  // namespace trireme::ops::cuda
