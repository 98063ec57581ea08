// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "layers.hpp"

namespace trireme::model::chain {

/// The layers of a block of the model, or of its head.
struct Group {
  std::string name, contents;
  Layers layers;
  Shape output;  ///< of one sample
};

/// A group of layers as a block of the model.
class ChainBlock final : public Block {
 public:
  ChainBlock(Group group, bool first) : group_(std::move(group)), first_(first) {}
  std::string name() const override { return group_.name; }
  std::string contents() const override { return group_.contents; }
  void declare(parallel::ParameterList& list) override { group_.layers.declare(list); }
  Shape output_shape(const Shape& input) const override {
    return batch_of(group_.output, input[0]);
  }
  Shape model_input_in_memory(const Shape& input, DType dtype, DeviceKind target) const override {
    return group_.layers.first().input_in_memory(input, dtype, target);
  }
  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    return group_.layers.forward(pass, x);
  }
  Tensor backward(MicroBatchPass& pass, const Tensor& dy) override {
    const Tensor dx = group_.layers.backward(pass, dy, !first_);
    return first_ ? Tensor{} : dx;
  }

 private:
  Group group_;
  bool first_;
};

/// The last group of layers, whose output are the logits.
class ChainHead final : public ClassifierHead {
 public:
  ChainHead(Group group, bool first) : group_(std::move(group)), first_(first) {}
  std::string name() const override { return group_.name; }
  std::string contents() const override { return group_.contents; }
  void declare(parallel::ParameterList& list) override { group_.layers.declare(list); }

 private:
  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    return group_.layers.forward(pass, x);
  }
  Tensor backward(MicroBatchPass& pass, const Tensor& dlogits) override {
    const Tensor dx = group_.layers.backward(pass, dlogits, !first_);
    return first_ ? Tensor{} : dx;
  }
  Group group_;
  bool first_;
};

}  // namespace trireme::model::chain
