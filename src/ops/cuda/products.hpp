#pragma once

#include "trireme/ops/convolution.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::ops::cuda {

// Products where the context's target is a CUDA device; shapes and types have been checked, and the
// op is counted. On meta, in any build, only memory is taken.
/// bias, residual: undefined where there is none.
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
void convolution_backward_data(Context&, const Convolution&, const Tensor& dy, const Tensor& w,
                               const Tensor& dx);
void convolution_backward_weight(Context&, const Convolution&, const Tensor& x, const Tensor& dy,
                                 const Tensor& dw, Write);

}  // namespace trireme::ops::cuda
