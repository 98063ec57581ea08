// SPDX-License-Identifier: Apache-2.0
//
// Residual networks for images (He et al. 2016), with torchvision's names: a stem, stages of
// residual blocks, and a head of average pooling and a linear classifier. Each residual block is
// one Block.
//
// make_resnet() assembles them. Norm, ReLU and residual sum are fused (ImageNorm). With
// stochastic depth (model.drop_path) the branch's factor is fused with the residual sum instead.
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/layers.hpp"
#include "options.hpp"
#include "trireme/base/check.hpp"
#include "trireme/model/family.hpp"
#include "trireme/ops/dropout.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/ops/pooling.hpp"

namespace trireme::model {
namespace {

using ImageActivation = ImageNorm::FusedActivation;

/// The first block: convolution, norm and ReLU. `imagenet`: 7x7 with stride 2, then 3x3 maximum
/// pooling with stride 2. `small`: 3x3 with stride 1, no pooling.
class StemBlock final : public Block {
 public:
  StemBlock(const ResnetOptions& options, std::int64_t in, std::int64_t out)
      : pool_(options.stem == ResnetStem::imagenet),
        convolution_("conv1", pool_ ? Convolution2d::Sizes{in, out, 7, 2, 3}
                                    : Convolution2d::Sizes{in, out, 3, 1, 1}),
        norm_("bn1", options.norm, out, ImageActivation::relu) {}
  std::string name() const override { return "stem"; }
  void declare(parallel::ParameterList& list) override {
    convolution_.declare(list);
    norm_.declare(list);
  }
  Shape output_shape(const Shape& input) const override {
    const Shape shape = convolution_.output_shape(input);
    return pool_ ? pooling(shape, DType::float32).output_shape() : shape;
  }

  Shape model_input_in_memory(const Shape& input, DType dtype, DeviceKind target) const override {
    Shape stored = input;
    stored[3] = ops::channels_in_memory(target, dtype, input[3]);
    return stored;
  }

  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    const Tensor activated = norm_.forward(pass, convolution_, x);
    if (!pool_) return activated;
    const ops::Pooling pool = pooling(activated.shape, activated.dtype);
    const Tensor y = pass.activation(activated.dtype, pool.output_shape());
    const Tensor winners = pass.activation(DType::uint8, pool.output_shape());
    ops::max_pool_forward(pass.context(), pool, activated, y, winners);
    pass.push_saved(activated);
    pass.push_saved(winners);
    return y;
  }

  Tensor backward(MicroBatchPass& pass, const Tensor& dy) override {
    Tensor d = dy;
    if (pool_) {
      const Tensor winners = pass.pop_saved(), activated = pass.pop_saved();
      d = pass.gradient(activated.dtype, activated.shape);
      ops::max_pool_backward(pass.context(), pooling(activated.shape, activated.dtype), dy, winners,
                             d);
    }
    return convolution_.backward(pass, norm_.backward(pass, d).dx, false);
  }

 private:
  static ops::Pooling pooling(const Shape& x, DType dtype) {
    return {.batch = x[0],
            .height = x[1],
            .width = x[2],
            .channels = x[3],
            .kernel = 3,
            .stride = 2,
            .padding = 1,
            .dtype = dtype};
  }
  bool pool_;
  Convolution2d convolution_;
  ImageNorm norm_;
};

/// The projection on the shortcut of a residual block, a 1x1 convolution and norm. Blocks that keep
/// the extents have none: their shortcut is the identity.
struct Shortcut {
  Convolution2d convolution;
  ImageNorm norm;
};

/// A residual block: basic (two 3x3 convolutions) or bottleneck (1x1, 3x3 with the stride, 1x1 to
/// four times the width).
class ResidualBlock final : public Block {
 public:
  ResidualBlock(const ResnetOptions& options, std::string name, std::int64_t in, std::int64_t width,
                std::int64_t stride, bool bottleneck, double drop_path)
      : name_(std::move(name)),
        path_key_(random_key(0, "drop_path/" + name_)),
        drop_path_(drop_path),
        norm_(options.norm) {
    const std::int64_t out = bottleneck ? 4 * width : width;
    const auto add = [&](const Convolution2d::Sizes& sizes, bool last) {
      const std::string number = std::to_string(convolutions_.size() + 1);
      convolutions_.emplace_back(name_ + ".conv" + number, sizes);
      norms_.emplace_back(name_ + ".bn" + number, options.norm, sizes.out,
                          !last            ? ImageActivation::relu
                          : drop_path_ > 0 ? ImageActivation::none
                                           : ImageActivation::add_relu,
                          last && options.zero_init_residual);
    };
    if (bottleneck) {
      add({in, width}, false);
      add({width, width, 3, stride, 1}, false);
      add({width, out}, true);
    } else {
      add({in, width, 3, stride, 1}, false);
      add({width, width, 3, 1, 1}, true);
    }
    if (stride != 1 || in != out) {
      shortcut_.emplace(
          Shortcut{{name_ + ".downsample.0", {in, out, 1, stride}},
                   {name_ + ".downsample.1", options.norm, out, ImageActivation::none}});
    }
  }
  std::string name() const override { return name_; }

  void declare(parallel::ParameterList& list) override {
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      convolutions_[i].declare(list);
      norms_[i].declare(list);
    }
    if (shortcut_) {
      shortcut_->convolution.declare(list);
      shortcut_->norm.declare(list);
    }
  }

  Shape output_shape(const Shape& input) const override {
    Shape shape = input;
    for (const Convolution2d& convolution : convolutions_) shape = convolution.output_shape(shape);
    return shape;
  }

  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    // The first convolution comes before the shortcut, so that its backward is the last one.
    Tensor y = norms_[0].forward(pass, convolutions_[0], x);
    const bool joins = pass.training() && joins_norms(pass);
    ImageNorm::Convolved convolved;  // with `joins` the shortcut without its norm
    Tensor residual = x;
    if (joins)
      convolved = shortcut_->norm.convolve(pass, &shortcut_->convolution, x);
    else if (shortcut_)
      residual = shortcut_->norm.forward(pass, shortcut_->convolution, x);
    for (std::size_t i = 1; i < convolutions_.size(); ++i) {
      const bool last = i + 1 == convolutions_.size();
      y = last && joins
              ? norms_[i].forward_joined(pass, convolutions_[i], y, shortcut_->norm, convolved)
              : norms_[i].forward(pass, convolutions_[i], y,
                                  last && drop_path_ == 0 ? residual : Tensor{});
    }
    if (drop_path_ == 0) return y;
    // The output of the norm, of which backward needs no copy, is overwritten.
    ops::dropout_add(pass.context(), path_of(pass, y), y, {}, residual, y);
    ops::relu_forward(pass.context(), y, y);
    pass.push_saved(y);
    return y;
  }

  Tensor backward(MicroBatchPass& pass, const Tensor& dy) override {
    Tensor d = dy, dresidual;
    if (drop_path_ > 0) {
      ops::relu_backward(pass.context(), pass.pop_saved(), dy, dy);
      dresidual = dy;
      d = pass.gradient(dy.dtype, dy.shape);
      ops::dropout(pass.context(), path_of(pass, dy), dy, d);
    }
    const bool joins = joins_norms(pass);
    for (std::size_t i = convolutions_.size(); i-- > 1;) {
      const ImageNorm::Gradients through = joins && i + 1 == convolutions_.size()
                                               ? norms_[i].backward_joined(pass, d, shortcut_->norm)
                                               : norms_[i].backward(pass, d);
      if (through.dresidual.defined()) dresidual = through.dresidual;
      d = convolutions_[i].backward(pass, through.dx);
    }
    if (shortcut_ && !joins) dresidual = shortcut_->norm.backward(pass, dresidual).dx;
    if (shortcut_) dresidual = shortcut_->convolution.backward(pass, dresidual);
    // The first convolution adds the gradient of the shortcut to its own.
    return convolutions_[0].backward(pass, norms_[0].backward(pass, d).dx, true, dresidual);
  }

 private:
  /// Returns whether training joins the last norm and the shortcut's (debug.joined_norms).
  bool joins_norms(MicroBatchPass& pass) const {
    return shortcut_ && drop_path_ == 0 && norm_ == ImageNormKind::batch &&
           pass.batch_norm().size == 1 && pass.context().joined_norms();
  }
  /// Returns the factors of the branch for a micro-batch of the shape of y: 1 in evaluation.
  ops::Dropout path_of(const MicroBatchPass& pass, const Tensor& y) const {
    return {.sample_keys = pass.sample_keys(),
            .context = y.shape[1] * y.shape[2],
            .path_probability = pass.training() ? static_cast<float>(drop_path_) : 0.0f,
            .path_key = pass.layer_key(path_key_)};
  }

  std::string name_;
  std::uint64_t path_key_;
  double drop_path_;
  ImageNormKind norm_;
  std::vector<Convolution2d> convolutions_;
  std::vector<ImageNorm> norms_;
  std::optional<Shortcut> shortcut_;
};

/// The head: average over the pixels, then a linear classifier.
class ResnetHead final : public ClassifierHead {
 public:
  ResnetHead(std::int64_t in, std::int64_t classes) : in_(in), linear_("fc", in, classes) {}
  std::string name() const override { return "head"; }
  void declare(parallel::ParameterList& list) override { linear_.declare(list); }

 private:
  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    const Tensor pooled = pass.activation(x.dtype, {x.shape[0], in_});
    ops::average_pool_forward(pass.context(), x.shape[0], pixels(x), in_, x, pooled);
    pass.push_saved(x);
    return linear_.forward(pass, pooled);
  }

  Tensor backward(MicroBatchPass& pass, const Tensor& dy) override {
    const Tensor dpooled = linear_.backward(pass, dy);
    const Tensor x = pass.pop_saved();
    const Tensor dx = pass.gradient(x.dtype, x.shape);
    ops::average_pool_backward(pass.context(), x.shape[0], pixels(x), in_, dpooled, dx);
    return dx;
  }

  std::int64_t pixels(const Tensor& x) const { return x.elements() / (x.shape[0] * in_); }
  std::int64_t in_;
  LinearLayer linear_;
};

/// Residual blocks per stage of the network.
struct Stages {
  std::vector<int> blocks;
  bool bottleneck = false;
};

/// Returns the stages of a network of this depth. Throws InputError for an unknown depth.
Stages stages_of_depth(int depth) {
  static const std::map<int, Stages> imagenet = {{18, {{2, 2, 2, 2}, false}},
                                                 {34, {{3, 4, 6, 3}, false}},
                                                 {50, {{3, 4, 6, 3}, true}},
                                                 {101, {{3, 4, 23, 3}, true}},
                                                 {152, {{3, 8, 36, 3}, true}}};
  if (const auto found = imagenet.find(depth); found != imagenet.end()) return found->second;
  validate(
      depth >= 8 && depth <= 56 && (depth - 2) % 6 == 0,
      "[model] depth = {}: no such residual network; 8, 14, 20, 32, 44, 56 or 18, 34, 50, 101, 152",
      depth);
  return {std::vector<int>(3, (depth - 2) / 6), false};
}

/// Makes a residual network (He et al. 2016; v1.5: the stride is in the 3x3 convolution) with
/// torchvision's names. Depths 8, 14, 20, 32, 44 and 56 have the CIFAR form: three stages of
/// (depth - 2) / 6 basic blocks, `width` channels in the first stage, doubled in each further one.
/// Throws InputError for other unknown depths.
ModelParts make_resnet(const ModelOptions& model, const Shape& input, const AnswerExtents& outputs,
                       const TensorPlacement& /*placement*/) {
  const auto& options = model.as<ResnetOptions>();
  const Stages stages = stages_of_depth(options.depth);
  std::vector<std::unique_ptr<Block>> blocks;
  blocks.push_back(std::make_unique<StemBlock>(options, input[3], options.width));
  std::int64_t channels = options.width;
  const int block_count = std::accumulate(stages.blocks.begin(), stages.blocks.end(), 0);
  for (std::size_t stage = 0; stage < stages.blocks.size(); ++stage) {
    const std::int64_t width = options.width << stage;
    for (int i = 0; i < stages.blocks[stage]; ++i) {
      const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      blocks.push_back(std::make_unique<ResidualBlock>(
          options, "layer" + std::to_string(stage + 1) + "." + std::to_string(i), channels, width,
          stride, stages.bottleneck,
          drop_path_at(options.drop_path, static_cast<std::int64_t>(blocks.size()) - 1,
                       block_count)));
      channels = stages.bottleneck ? 4 * width : width;
    }
  }
  return {std::move(blocks), std::make_unique<ResnetHead>(channels, outputs.count)};
}

using namespace keys;

void visit_resnet(Visitor& v, ModelOptions& options) {
  ResnetOptions& resnet = options.as<ResnetOptions>();
  // The CIFAR form has three stages of (depth - 2) / 6 blocks; the other depths are of the ImageNet
  // form (He et al. 2016, table 1).
  v.field({"depth",
           "resnet: sets the number of layers: 8, 14, 20, 26, 32, 38, 44, 56 (CIFAR form) or 18, "
           "34, 50, 101, 152; required.",
           {},
           "choose for instance depth = 20 (CIFAR form) or 50 (ImageNet form)"},
          one_of(resnet.depth, {8, 14, 18, 20, 26, 32, 34, 38, 44, 50, 56, 101, 152}));
  v.field({"width", "resnet: sets the channels of the first stage."},
          integer(resnet.width, between(1, max_width)));
  v.field({"stem",
           "resnet: selects the first layers: imagenet (7x7 convolution and pooling) or small (3x3 "
           "convolution)."},
          choice<ResnetStem>(resnet.stem,
                             {{"imagenet", ResnetStem::imagenet}, {"small", ResnetStem::small}}));
  v.field({"norm", "resnet: selects the normalization: batch or group.", {}, nullptr, true},
          choice<ImageNormKind>(
              resnet.norm, {{"batch", ImageNormKind::batch}, {"group", ImageNormKind::group}}));
  v.field(
      {"zero_init_residual",
       "resnet: starts each residual branch with scale 0, so that blocks start as the identity."},
      flag(resnet.zero_init_residual));
  v.field({"drop_path",
           "Sets the probability that training drops the branch of the last residual block, from 0 "
           "to below 1; earlier blocks have less."},
          real(resnet.drop_path, half_open(0, 1)));
}

std::optional<BrokenRule> missing_batch_norm(const ModelOptions& options) {
  if (options.as<ResnetOptions>().norm == ImageNormKind::batch) return std::nullopt;
  return BrokenRule{"model.norm",
                    "model.norm = \"group\" takes those of each sample by itself; use "
                    "sync_batch_norm = false, or norm = \"batch\""};
}

std::optional<BrokenRule> broken_joined_norms_rule(const ModelOptions& options) {
  const auto& resnet = options.as<ResnetOptions>();
  if (resnet.norm != ImageNormKind::batch)
    return BrokenRule{"model.norm",
                      "true joins batch norms, but model.norm = \"group\"; remove it, or use "
                      "norm = \"batch\""};
  if (resnet.drop_path > 0)
    return BrokenRule{
        "model.drop_path",
        fmt::format("true joins norms with the residual sum, but model.drop_path = {} scales "
                    "the branch behind its norm; remove it, or use drop_path = 0",
                    resnet.drop_path)};
  return std::nullopt;
}

}  // namespace

extern constinit const Family resnet_family{
    .word = "resnet",
    .size_advice = "a smaller model.width",
    .defaults = [] { return std::any(ResnetOptions()); },
    .visit = visit_resnet,
    .describe =
        [](const ModelOptions& options) {
          const auto& resnet = options.as<ResnetOptions>();
          return fmt::format("resnet, depth {}, width {}", resnet.depth, resnet.width);
        },
    .missing_batch_norm = missing_batch_norm,
    .broken_joined_norms_rule = broken_joined_norms_rule,
    .reset_beside_weights =
        [](ModelOptions& options) {
          auto& resnet = options.as<ResnetOptions>();
          resnet.zero_init_residual = false;
          resnet.drop_path = 0;
        },
    .classes_in = [](const ModelOptions&, const Answer&, const Shape&,
                     const ShapeInFile& shape_of) { return shape_of({"fc.weight"}, 2)[0]; },
    .input_in =
        [](const ModelOptions& options, const ShapeInFile& shape_of) {
          // no parameter depends on it
          const std::int64_t pixels =
              options.as<ResnetOptions>().stem == ResnetStem::imagenet ? 224 : 32;
          return Shape{1, pixels, pixels, shape_of({"conv1.weight"}, 4)[1]};
        },
    .make = make_resnet};

}  // namespace trireme::model
