// SPDX-License-Identifier: Apache-2.0
//
// The layers of chains. Each forward allocates its output from the pass, enqueues its operations
// and saves what backward pops. network.cpp makes them from the deck's list.
#include "layers.hpp"

#include <utility>

#include "trireme/ops/activation.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/embedding.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/ops/pixel_copies.hpp"
#include "trireme/ops/transpose.hpp"

namespace trireme::model::chain {

using parallel::Initializer;
using parallel::ParameterSpec;

namespace {

/// Returns a tensor [batch, .., channels] as a matrix [rows, channels].
Tensor as_matrix(const Tensor& x) {
  return x.reshaped({x.elements() / x.shape.back(), x.shape.back()});
}

/// Returns `shape` with another number of channels.
Shape with_channels(Shape shape, std::int64_t channels) {
  shape[shape.rank() - 1] = channels;
  return shape;
}

/// Declares a bias that a matrix product adds.
ParameterSpec product_bias(const std::string& name, std::int64_t size) {
  ParameterSpec spec = vector_spec(name, size);
  spec.product_bias = true;
  return spec;
}

Shape padded_input(const Shape& input, DType dtype, DeviceKind target) {
  return with_channels(input, ops::channels_in_memory(target, dtype, input.back()));
}

}  // namespace

Shape batch_of(const Shape& sample, std::int64_t batch) {
  switch (sample.rank()) {
    case 1: return {batch, sample[0]};
    case 2: return {batch, sample[0], sample[1]};
    default: return {batch, sample[0], sample[1], sample[2]};
  }
}

void Layers::declare(parallel::ParameterList& list) {
  for (const auto& layer : layers_) layer->declare(list);
}

Tensor Layers::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) {
  Tensor y = x;
  for (const auto& layer : layers_)
    y = layer->forward(pass, y, layer == layers_.back() ? residual : Tensor{});
  return y;
}

Tensor Layers::backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                        const Tensor& addend) {
  Tensor d = dy;
  for (std::size_t i = layers_.size(); i-- > 0;)
    d = layers_[i]->backward(pass, d, i > 0 || want_dx, i == 0 ? addend : Tensor{});
  return d;
}

ConvLayer::ConvLayer(const std::string& name, const Convolution2d::Sizes& sizes,
                     const Initializer& start, bool bias)
    : convolution_(name, sizes, start),
      sizes_(sizes),
      bias_name_(name + ".bias"),
      has_bias_(bias) {}

void ConvLayer::declare(parallel::ParameterList& list) {
  convolution_.declare(list);
  if (has_bias_) bias_ = list.declare(vector_spec(bias_name_, sizes_.out));
}

Tensor ConvLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& /*residual*/) {
  const Tensor y = convolution_.forward(pass, x);
  if (has_bias_)
    ops::add_bias(pass.context(), pass.store().weight(bias_), as_matrix(y), as_matrix(y));
  return y;
}

Tensor ConvLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                           const Tensor& addend) {
  if (has_bias_)
    if (const Tensor dbias = pass.gradient_of(bias_); dbias.defined())
      ops::column_sums(pass.context(), as_matrix(dy), dbias, pass.write());
  return convolution_.backward(pass, dy, want_dx, addend);
}

Shape ConvLayer::input_in_memory(const Shape& input, DType dtype, DeviceKind target) const {
  return padded_input(input, dtype, target);
}

void PatchesLayer::declare(parallel::ParameterList& list) {
  weight_ = list.declare({.name = name_ + ".weight",
                          .shape = {width_, patches_.channels, patches_.patch, patches_.patch},
                          .initializer = start_,
                          .inner = parallel::InnerOrder::channels_last});
  bias_ = list.declare(product_bias(name_ + ".bias", width_));
}

Tensor PatchesLayer::rows_of(MicroBatchPass& pass, const Tensor& x) const {
  const Tensor rows = pass.context().workspace().allocate(
      x.dtype, {x.shape[0] * patches_.rows_of_sample(), patches_.row_elements()});
  ops::gather_patches(pass.context(), patches_, x, 0, rows);
  return rows;
}

ops::Linear PatchesLayer::problem(const Tensor& rows) const {
  return {.rows = rows.shape[0], .in = rows.shape[1], .out = width_, .dtype = rows.dtype};
}

Tensor PatchesLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& /*residual*/) {
  const Tensor y = pass.activation(x.dtype, {x.shape[0], patches_.rows_of_sample(), width_});
  const ArenaScope scope(pass.context().workspace());
  const Tensor rows = rows_of(pass, x);
  ops::Weight weight = pass.single_use_weight(weight_, prepared_);
  weight.value = weight.value.reshaped({width_, patches_.row_elements()});
  ops::linear_forward(pass.context(), problem(rows), rows, weight, pass.store().weight(bias_),
                      as_matrix(y));
  pass.push_saved(x);
  return y;
}

Tensor PatchesLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                              const Tensor& addend) {
  const Tensor x = pass.pop_saved();
  {
    const ArenaScope scope(pass.context().workspace());
    const Tensor rows = rows_of(pass, x), dweight = pass.gradient_of(weight_);
    ops::linear_backward_weight(
        pass.context(), problem(rows), rows, as_matrix(dy),
        dweight.defined() ? dweight.reshaped({width_, patches_.row_elements()}) : dweight,
        pass.gradient_of(bias_), pass.write());
  }
  if (!want_dx) return {};
  // Patches do not overlap: the layer is a convolution whose stride is its kernel.
  const ops::Convolution convolution{.batch = x.shape[0],
                                     .height = patches_.height,
                                     .width = patches_.width,
                                     .in_channels = patches_.channels,
                                     .out_channels = width_,
                                     .kernel = patches_.patch,
                                     .stride = patches_.patch,
                                     .dtype = x.dtype};
  const Tensor dx = pass.gradient(x.dtype, x.shape);
  ops::convolution_backward_data(pass.context(), convolution,
                                 dy.reshaped(convolution.output_shape()),
                                 pass.single_use_weight(weight_, prepared_for_dx_), addend, dx);
  return dx;
}

void NormLayer::declare(parallel::ParameterList& list) {
  if (convolution_) convolution_->declare(list);
  norm_.declare(list);
}

Tensor NormLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) {
  return convolution_ ? norm_.forward(pass, *convolution_, x, residual)
                      : norm_.forward(pass, x, residual);
}

Tensor NormLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                           const Tensor& addend) {
  const Tensor d = norm_.backward(pass, dy).dx;
  return convolution_ ? convolution_->backward(pass, d, want_dx, addend) : d;
}

Shape NormLayer::input_in_memory(const Shape& input, DType dtype, DeviceKind target) const {
  return convolution_ ? padded_input(input, dtype, target) : input;
}

Tensor ChannelNormLayer::forward(MicroBatchPass& pass, const Tensor& x,
                                 const Tensor& /*residual*/) {
  return norm_.forward(pass, as_matrix(x)).reshaped(x.shape);
}

Tensor ChannelNormLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool /*want_dx*/,
                                  const Tensor& addend) {
  norm_.backward(pass, as_matrix(dy), addend.defined() ? as_matrix(addend) : addend, as_matrix(dy));
  return dy;
}

Tensor ActivationLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& /*residual*/) {
  const Tensor y = in_place_ ? x : pass.activation(x.dtype, x.shape);
  switch (form_) {
    case ActivationForm::relu: ops::relu_forward(pass.context(), x, y); break;
    case ActivationForm::gelu: ops::gelu_forward(pass.context(), x, y, ops::Gelu::exact); break;
    case ActivationForm::silu: ops::silu_forward(pass.context(), x, y); break;
  }
  pass.push_saved(form_ == ActivationForm::relu ? y : x);
  return y;
}

Tensor ActivationLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool /*want_dx*/,
                                 const Tensor& /*addend*/) {
  const Tensor saved = pass.pop_saved();
  switch (form_) {
    case ActivationForm::relu: ops::relu_backward(pass.context(), saved, dy, dy); break;
    case ActivationForm::gelu:
      ops::gelu_backward(pass.context(), saved, dy, dy, ops::Gelu::exact);
      break;
    case ActivationForm::silu: ops::silu_backward(pass.context(), saved, dy, dy); break;
  }
  return dy;
}

ops::Pooling PoolLayer::problem(std::int64_t batch, DType dtype) const {
  ops::Pooling pooling = pooling_;
  pooling.batch = batch;
  pooling.dtype = dtype;
  return pooling;
}

Tensor PoolLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& /*residual*/) {
  const ops::Pooling pooling = problem(x.shape[0], x.dtype);
  const Tensor y = pass.activation(x.dtype, pooling.output_shape());
  if (!is_max_) {
    ops::mean_pool_forward(pass.context(), pooling, x, y);
    return y;
  }
  const Tensor winners = pass.activation(DType::uint8, y.shape);
  ops::max_pool_forward(pass.context(), pooling, x, y, winners);
  pass.push_saved(winners);
  return y;
}

Tensor PoolLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool /*want_dx*/,
                           const Tensor& /*addend*/) {
  const ops::Pooling pooling = problem(dy.shape[0], dy.dtype);
  const Tensor dx =
      pass.gradient(dy.dtype, {pooling.batch, pooling.height, pooling.width, pooling.channels});
  if (is_max_)
    ops::max_pool_backward(pass.context(), pooling, dy, pass.pop_saved(), dx);
  else
    ops::mean_pool_backward(pass.context(), pooling, dy, dx);
  return dx;
}

Tensor UpsampleLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& /*residual*/) {
  const Tensor y = pass.activation(
      x.dtype, {x.shape[0], factor_ * x.shape[1], factor_ * x.shape[2], x.shape[3]});
  ops::upsample_forward(pass.context(), factor_, x, y);
  return y;
}

Tensor UpsampleLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                               const Tensor& /*addend*/) {
  if (!want_dx) return {};
  const Tensor dx = pass.gradient(
      dy.dtype, {dy.shape[0], dy.shape[1] / factor_, dy.shape[2] / factor_, dy.shape[3]});
  ops::upsample_backward(pass.context(), factor_, dy, dx);
  return dx;
}

Tensor GlobalPoolLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& /*residual*/) {
  const std::int64_t batch = x.shape[0], channels = input_.back();
  const Tensor y = pass.activation(x.dtype, {batch, channels});
  ops::average_pool_forward(pass.context(), batch, input_.elements() / channels, channels, x, y);
  return y;
}

Tensor GlobalPoolLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool /*want_dx*/,
                                 const Tensor& /*addend*/) {
  const std::int64_t batch = dy.shape[0], channels = input_.back();
  const Tensor dx = pass.gradient(dy.dtype, batch_of(input_, batch));
  ops::average_pool_backward(pass.context(), batch, input_.elements() / channels, channels, dy, dx);
  return dx;
}

Tensor FlattenLayer::forward(MicroBatchPass& /*pass*/, const Tensor& x,
                             const Tensor& /*residual*/) {
  return x.reshaped({x.shape[0], elements_});
}

Tensor FlattenLayer::backward(MicroBatchPass& /*pass*/, const Tensor& dy, bool /*want_dx*/,
                              const Tensor& /*addend*/) {
  return dy.reshaped(batch_of(input_, dy.shape[0]));
}

void Matrix::declare(parallel::ParameterList& list) {
  weight_ = list.declare({.name = name_ + ".weight",
                          .shape = {out_, in_},
                          .initializer = start_,
                          .form = parallel::MatrixForm::out_in});
  if (has_bias_) bias_ = list.declare(product_bias(name_ + ".bias", out_));
}

ops::Linear Matrix::problem(const Tensor& x) const {
  return {.rows = x.shape[0], .in = in_, .out = out_, .dtype = x.dtype};
}

void Matrix::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual,
                     const Tensor& y) {
  const ops::Weight weight = pass.single_use_weight(weight_, prepared_);
  const Tensor bias = has_bias_ ? pass.store().weight(bias_) : Tensor{};
  if (residual.defined())
    ops::linear_add_forward(pass.context(), problem(x), x, weight, bias, residual, y);
  else
    ops::linear_forward(pass.context(), problem(x), x, weight, bias, y);
}

void Matrix::backward(MicroBatchPass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  const Tensor dbias = has_bias_ ? pass.gradient_of(bias_) : Tensor{};
  ops::linear_backward_weight(pass.context(), problem(x), x, dy, pass.gradient_of(weight_), dbias,
                              pass.write());
  if (dx.defined())
    ops::linear_backward_data(pass.context(), problem(x), dy,
                              pass.single_use_weight(weight_, prepared_), dx);
}

Tensor RowsLinearLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) {
  const Tensor y = pass.activation(x.dtype, with_channels(x.shape, out_));
  matrix_.forward(pass, as_matrix(x), residual.defined() ? as_matrix(residual) : residual,
                  as_matrix(y));
  pass.push_saved(x);
  return y;
}

Tensor RowsLinearLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                                 const Tensor& /*addend*/) {
  const Tensor x = pass.pop_saved(), dx = want_dx ? pass.gradient(x.dtype, x.shape) : Tensor{};
  matrix_.backward(pass, as_matrix(x), as_matrix(dy), want_dx ? as_matrix(dx) : dx);
  return dx;
}

Tensor DropoutLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& /*residual*/) {
  if (!pass.training()) return x;
  const Tensor rows = as_matrix(x), y = pass.activation(x.dtype, x.shape);
  key_.apply(pass, rate_, rows.shape[0] / x.shape[0], rows, as_matrix(y));
  return y;
}

Tensor DropoutLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool /*want_dx*/,
                              const Tensor& /*addend*/) {
  const Tensor rows = as_matrix(dy);
  key_.apply_in_place(pass, rate_, rows.shape[0] / dy.shape[0], rows);
  return dy;
}

PositionsLayer::PositionsLayer(const std::string& name, const parallel::PositionGrid& grid,
                               std::int64_t width, const Initializer& start)
    : spec_{.name = name + ".weight", .shape = {1, grid.positions(), width}, .initializer = start} {
  spec_.decay = spec_.trust = false;
  spec_.grid = grid;
}

Tensor PositionsLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& /*residual*/) {
  const Tensor y = pass.activation(x.dtype, x.shape);
  ops::copy(pass.context(), x, y);
  ops::add_positions(pass.context(), pass.store().weight(table_).reshaped({x.shape[1], x.shape[2]}),
                     0, as_matrix(y));
  return y;
}

Tensor PositionsLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool /*want_dx*/,
                                const Tensor& /*addend*/) {
  if (const Tensor gradient = pass.gradient_of(table_); gradient.defined())
    ops::positions_backward(pass.context(), as_matrix(dy), 0,
                            gradient.reshaped({dy.shape[1], dy.shape[2]}), pass.write());
  return dy;
}

ops::Attention AttentionLayer::problem(std::int64_t batch, DType dtype) const {
  return {.batch = batch,
          .context = tokens_,
          .heads = heads_,
          .kv_heads = heads_,
          .head_width = width_ / heads_,
          .dtype = dtype,
          .mask = ops::AttentionMask::none};
}

Tensor AttentionLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) {
  const ops::Attention op = problem(x.shape[0], x.dtype);
  const std::int64_t rows = x.shape[0] * tokens_;
  const Tensor y = pass.activation(x.dtype, x.shape),
               qkv = pass.activation(x.dtype, {rows, op.qkv_width()}),
               out = pass.activation(x.dtype, {rows, op.out_width()}),
               log_sum = pass.activation(DType::float32, {op.batch, op.heads, op.queries()});
  qkv_.forward(pass, as_matrix(x), {}, qkv);
  ops::attention_forward(pass.context(), op, qkv, out, log_sum);
  projection_.forward(pass, out, residual.defined() ? as_matrix(residual) : residual, as_matrix(y));
  for (const Tensor& tensor : {x, qkv, out, log_sum}) pass.push_saved(tensor);
  return y;
}

Tensor AttentionLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                                const Tensor& /*addend*/) {
  const Tensor log_sum = pass.pop_saved(), out = pass.pop_saved(), qkv = pass.pop_saved(),
               x = pass.pop_saved();
  const Tensor dx = want_dx ? pass.gradient(x.dtype, x.shape) : Tensor{};
  Arena& workspace = pass.context().workspace();
  const ArenaScope scope(workspace);
  const Tensor dout = workspace.allocate(out.dtype, out.shape),
               dqkv = workspace.allocate(qkv.dtype, qkv.shape);
  projection_.backward(pass, out, as_matrix(dy), dout);
  ops::attention_backward(pass.context(), problem(x.shape[0], x.dtype), qkv, out, log_sum, dout,
                          dqkv);
  qkv_.backward(pass, as_matrix(x), dqkv, want_dx ? as_matrix(dx) : dx);
  return dx;
}

Tensor TransposeLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& /*residual*/) {
  const Tensor y = pass.activation(x.dtype, {x.shape[0], x.shape[2], x.shape[1]});
  ops::transpose(pass.context(), x, y);
  return y;
}

Tensor TransposeLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool /*want_dx*/,
                                const Tensor& /*addend*/) {
  const Tensor dx = pass.gradient(dy.dtype, {dy.shape[0], dy.shape[2], dy.shape[1]});
  ops::transpose(pass.context(), dy, dx);
  return dx;
}

void ResidualLayer::declare(parallel::ParameterList& list) {
  body_.declare(list);
  projection_.declare(list);
}

ops::Dropout ResidualLayer::path_of(MicroBatchPass& pass, const Tensor& y) const {
  const std::int64_t rows = y.elements() / (y.shape[0] * y.shape.back());
  return path_.mask(pass, 0, rows, 0, drop_path_);
}

// The projection comes first, so that its backward is the last one and adds the gradient of the
// body to its own.
Tensor ResidualLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& /*residual*/) {
  const Tensor other = projection_.empty() ? x : projection_.forward(pass, x);
  if (body_adds()) return body_.forward(pass, x, other);
  const Tensor branch = body_.forward(pass, x);
  const Tensor y =
      body_.last().reads_output() ? pass.activation(branch.dtype, branch.shape) : branch;
  ops::dropout_add(pass.context(), path_of(pass, branch), as_matrix(branch), {}, as_matrix(other),
                   as_matrix(y));
  return y;
}

Tensor ResidualLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                               const Tensor& /*addend*/) {
  Tensor dbranch = dy;
  if (drop_path_ > 0 || !body_.last().keeps_gradient()) {
    dbranch = pass.gradient(dy.dtype, dy.shape);
    ops::dropout(pass.context(), path_of(pass, dy), as_matrix(dy), as_matrix(dbranch));
  }
  if (!projection_.empty()) {
    const Tensor dx = body_.backward(pass, dbranch, want_dx);
    if (!want_dx || projection_.first().adds_gradient())
      return projection_.backward(pass, dy, want_dx, dx);
    ops::add(pass.context(), projection_.backward(pass, dy, true), dx);
    return dx;
  }
  if (!want_dx) return body_.backward(pass, dbranch, false);
  if (body_.first().adds_gradient()) return body_.backward(pass, dbranch, true, dy);
  const Tensor dx = body_.backward(pass, dbranch, true);
  ops::add(pass.context(), dy, dx);
  return dx;
}

}  // namespace trireme::model::chain
