// SPDX-License-Identifier: Apache-2.0
//
// Multilayer perceptrons: one block per hidden layer; the last linear layer is the head.
#include <string>
#include <utility>

#include "trireme/model/layers.hpp"
#include "trireme/model/model.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::model {
namespace {

/// A hidden layer: linear and ReLU. Accepts any shape [B, ...] as [B, in].
class MlpBlock final : public Block {
 public:
  MlpBlock(std::string name, std::int64_t in, std::int64_t out, bool first)
      : name_(std::move(name)), in_(in), out_(out), first_(first), linear_(name_, in, out) {}
  std::string name() const override { return name_; }
  void declare(parallel::ParameterList& list) override { linear_.declare(list); }
  Shape output_shape(const Shape& input) const override { return {input[0], out_}; }

  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    const Tensor y = linear_.forward(pass, x.reshaped({x.shape[0], in_}));
    ops::relu_forward(pass.context(), y, y);
    pass.push_saved(y);
    return y;
  }

  Tensor backward(MicroBatchPass& pass, const Tensor& dy) override {
    ops::relu_backward(pass.context(), pass.pop_saved(), dy, dy);
    return linear_.backward(pass, dy, !first_);
  }

 private:
  std::string name_;
  std::int64_t in_, out_;
  bool first_;
  LinearLayer linear_;
};

/// The last linear layer, which produces the logits.
class MlpHead final : public ClassifierHead {
 public:
  MlpHead(std::string name, std::int64_t in, std::int64_t classes, bool first)
      : name_(std::move(name)), in_(in), first_(first), linear_(name_, in, classes) {}
  std::string name() const override { return name_; }
  void declare(parallel::ParameterList& list) override { linear_.declare(list); }

 private:
  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    return linear_.forward(pass, x.reshaped({x.shape[0], in_}));
  }
  Tensor backward(MicroBatchPass& pass, const Tensor& dlogits) override {
    return linear_.backward(pass, dlogits, !first_);
  }

  std::string name_;
  std::int64_t in_;
  bool first_;
  LinearLayer linear_;
};

}  // namespace

ModelParts make_mlp(const MlpOptions& options, const Shape& input, std::int64_t classes) {
  std::vector<std::unique_ptr<Block>> blocks;
  std::int64_t in = input.elements() / input[0];
  const auto name = [&] { return "layers." + std::to_string(blocks.size()); };
  for (const std::int64_t width : options.widths) {
    blocks.push_back(std::make_unique<MlpBlock>(name(), in, width, blocks.empty()));
    in = width;
  }
  auto head = std::make_unique<MlpHead>(name(), in, classes, blocks.empty());
  return {std::move(blocks), std::move(head)};
}

}  // namespace trireme::model
