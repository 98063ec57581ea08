// SPDX-License-Identifier: Apache-2.0
//
// Layers of image models: convolution, batch and group norm, linear, and the classifier's loss.
//
// Each forward allocates its output from the pass, enqueues one operation and saves what backward
// pops. Blocks in resnet/family.cpp and mlp/family.cpp call them.
#include "layers.hpp"

#include <cmath>
#include <utility>

#include "model/parallel_layers.hpp"
#include "trireme/model/loss.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/ops/normalization.hpp"
#include "trireme/ops/pixel_copies.hpp"

namespace trireme::model {

using parallel::Initializer;
using parallel::InnerOrder;
using parallel::MatrixForm;
using parallel::ParameterSpec;
using parallel::Role;

namespace {

/// Returns the rows of an image tensor [B, H, W, C] seen as a matrix [rows, C].
std::int64_t pixel_rows(const Tensor& x) { return x.elements() / x.shape.back(); }

/// Allocates the mask that forward leaves for backward; undefined for 0 elements.
Tensor allocate_mask(MicroBatchPass& pass, std::int64_t elements) {
  return elements > 0 ? pass.activation(DType::uint8, {elements}) : Tensor{};
}

}  // namespace

Convolution2d::Convolution2d(std::string name, const Sizes& sizes,
                             const std::optional<Initializer>& start)
    : name_(std::move(name)), sizes_(sizes) {
  const double fan_out = static_cast<double>(sizes.out * sizes.kernel * sizes.kernel);
  start_ = start.value_or(Initializer{Initializer::Kind::normal, std::sqrt(2.0 / fan_out)});
}

void Convolution2d::declare(parallel::ParameterList& list) {
  weight_ = list.declare({.name = name_ + ".weight",
                          .shape = {sizes_.out, sizes_.in, sizes_.kernel, sizes_.kernel},
                          .initializer = start_,
                          .inner = InnerOrder::channels_last,
                          .form = MatrixForm::out_in});
}

Shape Convolution2d::wrapped_shape(const Shape& input) const {
  return {input[0], input[1] + sizes_.wrapped.sum(), input[2] + sizes_.wrapped.sum(), input[3]};
}

Tensor Convolution2d::wrap(MicroBatchPass& pass, const Tensor& x) const {
  if (!wraps()) return x;
  const Tensor y = pass.context().workspace().allocate(x.dtype, wrapped_shape(x.shape));
  ops::periodic_pad_forward(pass.context(), sizes_.wrapped, x, y);
  return y;
}

ops::Convolution Convolution2d::problem(const Shape& input, DType dtype) const {
  // Further channels in memory are 0; only images have them.
  TRIREME_EXPECT(input[3] == sizes_.in ||
                 (input[3] == ops::padded_image_channels && sizes_.in < input[3]));
  const Shape wrapped = wrapped_shape(input);
  return {.batch = input[0],
          .height = wrapped[1],
          .width = wrapped[2],
          .in_channels = sizes_.in,
          .out_channels = sizes_.out,
          .kernel = sizes_.kernel,
          .stride = sizes_.stride,
          .padding = sizes_.padding,
          .dtype = dtype,
          .padded_channels = input[3],
          .dilation = sizes_.dilation};
}

Shape Convolution2d::output_shape(const Shape& input) const {
  TRIREME_EXPECT(input.rank() == 4 && input[3] == sizes_.in);
  return problem(input, DType::float32).output_shape();
}

Tensor Convolution2d::forward(MicroBatchPass& pass, const Tensor& x,
                              const ops::BatchStatistics* statistics) {
  const ops::Convolution convolution = problem(x.shape, x.dtype);
  const Tensor y = pass.activation(x.dtype, convolution.output_shape());
  const ArenaScope scope(pass.context().workspace());
  const Tensor from = wrap(pass, x);
  if (statistics != nullptr)
    ops::convolution_statistics_forward(pass.context(), convolution, from, weight(pass), y,
                                        *statistics);
  else
    ops::convolution_forward(pass.context(), convolution, from, weight(pass), y);
  pass.push_saved(x);
  return y;
}

// The copy with periodic borders is made again for the gradient of the weight: a copy costs less
// than memory that is held from forward to backward.
Tensor Convolution2d::backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                               const Tensor& addend) {
  const Tensor x = pass.pop_saved();
  const ops::Convolution convolution = problem(x.shape, x.dtype);
  if (const Tensor dweight = pass.gradient_of(weight_); dweight.defined()) {
    const ArenaScope scope(pass.context().workspace());
    ops::convolution_backward_weight(pass.context(), convolution, wrap(pass, x), dy, dweight,
                                     pass.write());
  }
  if (!want_dx) return {};
  const Tensor dx = pass.gradient(x.dtype, x.shape);
  if (!wraps()) {
    ops::convolution_backward_data(pass.context(), convolution, dy, weight(pass), addend, dx);
    return dx;
  }
  const ArenaScope scope(pass.context().workspace());
  const Tensor dwrapped = pass.context().workspace().allocate(x.dtype, wrapped_shape(x.shape));
  ops::convolution_backward_data(pass.context(), convolution, dy, weight(pass), {}, dwrapped);
  ops::periodic_pad_backward(pass.context(), sizes_.wrapped, dwrapped, addend, dx);
  return dx;
}

ImageNorm::ImageNorm(std::string name, ImageNormKind kind, std::int64_t channels,
                     FusedActivation activation, bool zero_scale, std::int64_t groups)
    : name_(std::move(name)),
      kind_(kind),
      channels_(channels),
      groups_(groups > 0 ? groups : default_groups(channels)),
      activation_(activation),
      zero_scale_(zero_scale) {}

std::int64_t ImageNorm::default_groups(std::int64_t channels) {
  std::int64_t groups = std::min<std::int64_t>(32, channels);
  while (channels % groups != 0) --groups;
  return groups;
}

void ImageNorm::declare(parallel::ParameterList& list) {
  scale_ = list.declare(vector_spec(name_ + ".weight", channels_,
                                    {Initializer::Kind::constant, zero_scale_ ? 0.0 : 1.0}));
  shift_ =
      list.declare(vector_spec(name_ + ".bias", channels_, {Initializer::Kind::constant, 0.0}));
  if (kind_ == ImageNormKind::group) return;
  running_mean_ = list.declare(vector_spec(name_ + ".running_mean", channels_,
                                           {Initializer::Kind::constant, 0.0}, Role::statistic));
  running_variance_ = list.declare(vector_spec(
      name_ + ".running_var", channels_, {Initializer::Kind::constant, 1.0}, Role::statistic));
}

ops::BatchNorm ImageNorm::batch_norm(const Tensor& x) const {
  return {.rows = pixel_rows(x),
          .channels = channels_,
          .relu = activation_ != FusedActivation::none,
          .add = activation_ == FusedActivation::add_relu,
          .dtype = x.dtype};
}

ImageNorm::Convolved ImageNorm::convolve(MicroBatchPass& pass, Convolution2d* convolution,
                                         const Tensor& input) {
  const auto vector = [&] { return pass.activation(DType::float32, {channels_}); };
  const auto compute = [&](const ops::BatchStatistics& statistics) {
    if (convolution) return convolution->forward(pass, input, &statistics);
    ops::batch_norm_statistics(pass.context(), batch_norm(input), input, statistics);
    return input;
  };
  const Tensor mean = vector(), rstd = vector();
  const ops::BatchStatistics statistics{mean, rstd, vector()};
  const ops::BatchGroup& group = pass.batch_norm();
  if (group.size == 1) return {compute(statistics), statistics};
  // This rank's part of the gather. Its rstd is that of the rank alone until the join.
  const ArenaScope scope(pass.context().workspace());
  const Tensor all =
                   pass.context().workspace().allocate(DType::float32, {group.size, 2 * channels_}),
               own = all.rows(group.rank, group.rank + 1).reshaped({2 * channels_});
  const ops::BatchStatistics alone{.mean = own.rows(0, channels_),
                                   .rstd = statistics.rstd,
                                   .unbiased_variance = own.rows(channels_, 2 * channels_)};
  const Tensor x = compute(alone);
  ops::batch_norm_join(pass.context(), batch_norm(x), group, all, statistics);
  return {x, statistics};
}

// Three cases:
// - Batch norm in evaluation: running statistics.
// - Batch norm in training: statistics of the batch, computed with the convolution, and joined with
//   those of the other ranks of the group. A block that is recomputed joins them again: all ranks
//   of the group recompute it at the same place of their schedule, and the parts are the same.
// - Group norm: statistics of each sample, computed with the norm.
Tensor ImageNorm::forward_behind(MicroBatchPass& pass, Convolution2d* convolution,
                                 const Tensor& input, const Tensor& residual) {
  parallel::ParameterStore& store = pass.store();
  const bool relu = activation_ != FusedActivation::none,
             add = activation_ == FusedActivation::add_relu;
  if (kind_ == ImageNormKind::batch && !pass.training()) {
    const Tensor x = convolution ? convolution->forward(pass, input) : input,
                 y = pass.activation(x.dtype, x.shape);
    ops::batch_norm_inference(pass.context(), batch_norm(x), x, store.weight(scale_),
                              store.weight(shift_), residual, store.weight(running_mean_),
                              store.weight(running_variance_), y);
    return y;
  }
  ops::BatchStatistics statistics;
  Tensor x, y, mask;
  if (kind_ == ImageNormKind::batch) {
    const Convolved convolved = convolve(pass, convolution, input);
    x = convolved.x;
    statistics = convolved.statistics;
    y = pass.activation(x.dtype, x.shape);
    mask = allocate_mask(pass, ops::batch_norm_mask_elements(pass.context(), batch_norm(x)));
    ops::batch_norm_apply(pass.context(), batch_norm(x), x, store.weight(scale_),
                          store.weight(shift_), residual, y, statistics, mask);
    pass.push_saved(statistics.unbiased_variance);
  } else {
    const auto vector = [&] { return pass.activation(DType::float32, {input.shape[0] * groups_}); };
    statistics.mean = vector();
    statistics.rstd = vector();
    x = convolution ? convolution->forward(pass, input) : input;
    y = pass.activation(x.dtype, x.shape);
    const ops::GroupNorm norm{.batch = x.shape[0],
                              .pixels = pixel_rows(x) / x.shape[0],
                              .channels = channels_,
                              .groups = groups_,
                              .relu = relu,
                              .add = add,
                              .dtype = x.dtype};
    mask = allocate_mask(pass, ops::group_norm_mask_elements(pass.context(), norm));
    ops::group_norm_forward(pass.context(), norm, x, store.weight(scale_), store.weight(shift_),
                            residual, y, statistics.mean, statistics.rstd, mask);
  }
  pass.push_saved(x);
  pass.push_saved(y);
  pass.push_saved(statistics.mean);
  pass.push_saved(statistics.rstd);
  pass.push_saved(mask);
  return y;
}

ImageNorm::Gradients ImageNorm::backward(MicroBatchPass& pass, const Tensor& dy) {
  parallel::ParameterStore& store = pass.store();
  const Tensor mask = pass.pop_saved(), rstd = pass.pop_saved(), mean = pass.pop_saved(),
               y = pass.pop_saved(), x = pass.pop_saved();
  const bool relu = activation_ != FusedActivation::none,
             add = activation_ == FusedActivation::add_relu;
  const Tensor dx = add ? pass.gradient(dy.dtype, dy.shape) : dy;
  const Tensor dresidual = add ? dy : Tensor{};
  if (kind_ == ImageNormKind::batch) {
    const Tensor unbiased_variance = pass.pop_saved();
    // The "gradient" of a running statistic is this batch's value, averaged over the micro-batches
    // of the step (docs/design/decisions/0002).
    ops::batch_norm_backward(
        pass.context(), batch_norm(x), x, y, dy, store.weight(scale_), store.weight(shift_),
        {mean, rstd, unbiased_variance}, dx, dresidual, store.gradient(scale_),
        store.gradient(shift_),
        {store.gradient(running_mean_), store.gradient(running_variance_), pass.statistic_scale()},
        mask, pass.write(), pass.batch_norm());
  } else {
    const ops::GroupNorm norm{.batch = x.shape[0],
                              .pixels = pixel_rows(x) / x.shape[0],
                              .channels = channels_,
                              .groups = groups_,
                              .relu = relu,
                              .add = add,
                              .dtype = x.dtype};
    ops::group_norm_backward(pass.context(), norm, x, y, dy, store.weight(scale_),
                             store.weight(shift_), mean, rstd, dx, dresidual,
                             store.gradient(scale_), store.gradient(shift_), mask, pass.write());
  }
  return {dx, dresidual};
}

ops::JoinedBatchNorm ImageNorm::joined(MicroBatchPass& pass, const Convolved& convolved) const {
  parallel::ParameterStore& store = pass.store();
  return {.x = convolved.x,
          .gamma = store.weight(scale_),
          .beta = store.weight(shift_),
          .statistics = convolved.statistics};
}

Tensor ImageNorm::forward_joined(MicroBatchPass& pass, Convolution2d& convolution,
                                 const Tensor& input, const ImageNorm& shortcut,
                                 const Convolved& residual) {
  TRIREME_EXPECT(pass.training() && pass.batch_norm().size == 1);
  const Convolved convolved = convolve(pass, &convolution, input);
  const ops::BatchNorm norm = batch_norm(convolved.x);
  const Tensor y = pass.activation(convolved.x.dtype, convolved.x.shape),
               mask = allocate_mask(pass, ops::batch_norm_mask_elements(pass.context(), norm));
  ops::batch_norm_apply_joined(pass.context(), norm, joined(pass, convolved),
                               shortcut.joined(pass, residual), y, mask);
  for (const Convolved& each : {residual, convolved}) {
    for (const Tensor& tensor :
         {each.x, each.statistics.mean, each.statistics.rstd, each.statistics.unbiased_variance})
      pass.push_saved(tensor);
  }
  pass.push_saved(y);
  pass.push_saved(mask);
  return y;
}

ImageNorm::Gradients ImageNorm::backward_joined(MicroBatchPass& pass, const Tensor& dy,
                                                const ImageNorm& shortcut) {
  const Tensor mask = pass.pop_saved(), y = pass.pop_saved();
  const Tensor dx = pass.gradient(dy.dtype, dy.shape);
  const auto pop = [&](const ImageNorm& norm, const Tensor& to) {
    Convolved convolved;
    convolved.statistics.unbiased_variance = pass.pop_saved();
    convolved.statistics.rstd = pass.pop_saved();
    convolved.statistics.mean = pass.pop_saved();
    convolved.x = pass.pop_saved();
    parallel::ParameterStore& store = pass.store();
    ops::JoinedBatchNorm all = norm.joined(pass, convolved);
    all.dx = to;
    all.dgamma = store.gradient(norm.scale_);
    all.dbeta = store.gradient(norm.shift_);
    all.running = {store.gradient(norm.running_mean_), store.gradient(norm.running_variance_),
                   pass.statistic_scale()};
    return all;
  };
  const ops::JoinedBatchNorm block = pop(*this, dx), residual = pop(shortcut, dy);
  ops::batch_norm_backward_joined(pass.context(), batch_norm(block.x), block, residual, y, dy, mask,
                                  pass.write());
  return {dx, dy};
}

LinearLayer::LinearLayer(std::string name, std::int64_t in, std::int64_t out,
                         const std::optional<Start>& start, Rows rows)
    : name_(std::move(name)), in_(in), out_(out), rows_(rows) {
  const Initializer uniform{Initializer::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(in))};
  start_ = start.value_or(Start{uniform, uniform});
}

void LinearLayer::declare(parallel::ParameterList& list) {
  weight_ = list.declare({.name = name_ + ".weight",
                          .shape = {out_, in_},
                          .initializer = start_.weight,
                          .form = MatrixForm::out_in,
                          .partial_gradient = parallel::PartialGradient::in_any_group});
  ParameterSpec bias = vector_spec(name_ + ".bias", out_, start_.bias);
  bias.product_bias = true;
  bias.partial_gradient = parallel::PartialGradient::in_any_group;
  bias_ = list.declare(std::move(bias));
}

template <class Compute>
void LinearLayer::compute(MicroBatchPass& pass, const Tensor& y, Compute&& compute) const {
  if (multiplies_own_rows(pass))
    compute();
  else
    compute_on_first_rank(pass, y, std::forward<Compute>(compute));
}

Tensor LinearLayer::forward(MicroBatchPass& pass, const Tensor& x) {
  const Tensor y = pass.activation(x.dtype, {x.shape[0], out_});
  forward(pass, x, y);
  return y;
}

void LinearLayer::forward(MicroBatchPass& pass, const Tensor& x, const Tensor& y) {
  const ops::Linear linear{.rows = x.shape[0], .in = in_, .out = out_, .dtype = x.dtype};
  compute(pass, y, [&] {
    ops::linear_forward(pass.context(), linear, x, weight(pass), pass.store().weight(bias_), y);
  });
  pass.push_saved(x);
}

Tensor LinearLayer::backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx) {
  const Tensor x = pass.pop_saved();
  const ops::Linear linear{.rows = x.shape[0], .in = in_, .out = out_, .dtype = x.dtype};
  const Tensor dweight = pass.gradient_of(weight_), dbias = pass.gradient_of(bias_);
  // The gradients are summed over the tensor group.
  if (pass.tensor().rank() == 0 || multiplies_own_rows(pass)) {
    ops::linear_backward_weight(pass.context(), linear, x, dy, dweight, dbias, pass.write());
  } else if (pass.write() == ops::Write::assign) {
    for (const Tensor& gradient : {dweight, dbias})
      if (gradient.defined()) ops::fill(pass.context(), gradient, 0);
  }
  if (!want_dx) return {};
  const Tensor dx = pass.gradient(x.dtype, x.shape);
  compute(pass, dx,
          [&] { ops::linear_backward_data(pass.context(), linear, dy, weight(pass), dx); });
  return dx;
}

Tensor ClassifierHead::loss(MicroBatchPass& pass, const Tensor& x, const Tensor& labels,
                            const LossSettings& scale, const Tensor& sums) {
  const Tensor outputs = forward(pass, x);
  // Of a map each pixel is a row. Losses of numbers take a line of an image for one, since a row of
  // few numbers would leave most threads of a device without work.
  const Shape& shape = outputs.shape;
  const bool has_lines = shape.rank() == 4 && labels.dtype == DType::float32;
  const std::int64_t columns = has_lines ? shape[2] * shape[3] : shape.back();
  Tensor logits = outputs;
  logits.shape = {outputs.elements() / columns, columns};
  TRIREME_EXPECT(!scale.statistics.defined());
  TRIREME_EXPECT(scale.kind != nullptr);
  const LossKind& kind = *scale.kind;
  if (!pass.training()) {
    if (scale.logits.defined()) {
      Tensor kept = logits;
      kept.shape = scale.logits.shape;
      ops::cast(pass.context(), kept, scale.logits);
    }
    LossSettings plain = scale;
    plain.gradient_scale = 0;
    kind.compute(pass.context(), logits, labels, plain, sums, {});
    return {};
  }
  Tensor dlogits = pass.gradient(logits.dtype, logits.shape);
  kind.compute(pass.context(), logits, labels, scale, sums, dlogits);
  dlogits.shape = outputs.shape;
  return backward(pass, dlogits);
}

Tensor ClassifierHead::logits(MicroBatchPass& pass, const Tensor& x, std::int64_t row) {
  TRIREME_EXPECT(!pass.tensor().rows_are_split());
  const Tensor logits = forward(pass, x.rows(row * rows_, (row + 1) * rows_));
  const Tensor wide = pass.activation(DType::float32, logits.shape);
  ops::cast(pass.context(), logits, wide);
  return wide;
}

}  // namespace trireme::model
