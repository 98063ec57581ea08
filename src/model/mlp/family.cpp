// SPDX-License-Identifier: Apache-2.0
//
// Multilayer perceptrons: one block per hidden layer; the last linear layer is the head.
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/layers.hpp"
#include "options.hpp"
#include "trireme/model/family.hpp"
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

/// Makes linear layers `layers.<i>.weight`, `.bias` with ReLU between them. The last one is the
/// head.
ModelParts make_mlp(const ModelOptions& options, const Shape& input, const AnswerExtents& outputs,
                    const TensorPlacement& /*placement*/) {
  std::vector<std::unique_ptr<Block>> blocks;
  std::int64_t in = input.elements() / input[0];
  const auto name = [&] { return "layers." + std::to_string(blocks.size()); };
  for (const std::int64_t width : options.as<MlpOptions>().widths) {
    blocks.push_back(std::make_unique<MlpBlock>(name(), in, width, blocks.empty()));
    in = width;
  }
  auto head = std::make_unique<MlpHead>(name(), in, outputs.count, blocks.empty());
  return {std::move(blocks), std::move(head)};
}

using namespace keys;

constexpr std::int64_t max_extent = 1 << 20;
constexpr std::size_t max_listed_layers = 1024;

/// A list of layer widths, each from 1 to 2^20.
Field extents(std::vector<std::int64_t>& values) {
  const auto read = [&values](const Value& given) -> std::string {
    const auto array = given.list();
    if (!array) return given.wrong_type("an array of integers, as in [512, 256]");
    if (array->size() > max_listed_layers)
      return fmt::format("{} layers are too many; at most {}", array->size(), max_listed_layers);
    std::vector<std::int64_t> list;
    for (const Value& element : *array) {
      const auto integer = element.integer();
      if (!integer)
        return "must contain only integers, as in [512, 256]; here it contains " +
               std::string(element.type_name());
      if (*integer < 1 || *integer > max_extent)
        return fmt::format("{} is out of range; every extent must be at least 1 and at most {}",
                           *integer, max_extent);
      list.push_back(*integer);
    }
    values = std::move(list);
    return "";
  };
  return {read, [&values] { return fmt::format("[{}]", fmt::join(values, ", ")); },
          "list of integers",
          fmt::format("each at least 1 and at most {}; at most {} of them", max_extent,
                      max_listed_layers)};
}

void visit_mlp(Visitor& v, ModelOptions& options) {
  v.field({"widths",
           "mlp: lists the widths of the hidden layers, as in [512, 256]; required.",
           {},
           "give the extents of the hidden layers, as in widths = [512, 256]"},
          extents(options.as<MlpOptions>().widths));
}

}  // namespace

extern constinit const Family mlp_family{
    .word = "mlp",
    .flattens = true,
    .size_advice = "smaller model.widths",
    .defaults = [] { return std::any(MlpOptions()); },
    .visit = visit_mlp,
    .describe = [](const ModelOptions&) { return std::string("mlp"); },
    .classes_in =
        [](const ModelOptions& options, const Answer&, const Shape&, const ShapeInFile& shape_of) {
          const std::size_t last = options.as<MlpOptions>().widths.size();
          return shape_of({fmt::format("layers.{}.weight", last)}, 2)[0];
        },
    .input_in =
        [](const ModelOptions&, const ShapeInFile& shape_of) {
          return Shape{1, 1, 1, shape_of({"layers.0.weight"}, 2)[1]};
        },
    .make = make_mlp};

}  // namespace trireme::model
