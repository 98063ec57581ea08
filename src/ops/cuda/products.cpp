#include "products.hpp"

#include "../backend.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::ops::cuda {
namespace {

using Kind = Problem::Kind;

/// Whether the bias (of y's type) was added.
bool multiply(Context& context, Kind kind, const Linear& l, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
              Write write = Write::assign) {
  const ArenaScope scope(context.workspace());
  const Tensor workspace = context.workspace().allocate(DType::uint8, {workspace_bytes});
  return context.meta() || context.backend().cuda->multiply(kind, l, x, w, bias, y, write, workspace);
}

void convolve(Context& context, Kind kind, const Convolution& c, const Tensor& x, const Tensor& w, const Tensor& y) {
  const ArenaScope scope(context.workspace());
  const Tensor workspace = context.workspace().allocate(DType::uint8, {workspace_bytes});
  if (!context.meta()) context.backend().cuda->convolve(kind, c, x, w, y, workspace);
}

}  // namespace

void linear_forward(Context& context, const Linear& l, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) {
  const ArenaScope scope(context.workspace());
  Tensor addend = bias;
  if (bias.defined() && y.dtype != bias.dtype) {  // cuBLASLt adds a bias of the result's type
    addend = context.workspace().allocate(y.dtype, bias.shape);
    cast(context, bias, addend);
  }
  const bool added = multiply(context, Kind::linear_forward, l, x, w, addend, y);
  if (bias.defined() && !added) add_bias(context, bias, y, y);
}

void linear_backward_data(Context& context, const Linear& l, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  multiply(context, Kind::linear_backward_data, l, dx, w, {}, dy);
}

void linear_backward_weight(Context& context, const Linear& l, const Tensor& x, const Tensor& dy, const Tensor& dw, Write write) {
  multiply(context, Kind::linear_backward_weight, l, x, dw, {}, dy, write);
}

void convolution_forward(Context& context, const Convolution& c, const Tensor& x, const Tensor& w, const Tensor& y) {
  convolve(context, Kind::convolution_forward, c, x, w, y);
}

void convolution_backward_data(Context& context, const Convolution& c, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  convolve(context, Kind::convolution_backward_data, c, dx, w, dy);
}

/// cuDNN's graphs write and do not add, in the type of the operands: the gradient comes by way of the workspace.
void convolution_backward_weight(Context& context, const Convolution& c, const Tensor& x, const Tensor& dy, const Tensor& dw, Write write) {
  if (c.dtype == DType::float32 && write == Write::assign) return convolve(context, Kind::convolution_backward_weight, c, x, dw, dy);
  const ArenaScope scope(context.workspace());
  const Tensor made = context.workspace().allocate(c.dtype, c.weight_shape());
  convolve(context, Kind::convolution_backward_weight, c, x, made, dy);
  if (write == Write::assign) return cast(context, made, dw);
  Tensor wide = made;
  if (c.dtype != DType::float32) {
    wide = context.workspace().allocate(DType::float32, c.weight_shape());
    cast(context, made, wide);
  }
  add(context, wide, dw);
}

}  // namespace trireme::ops::cuda
