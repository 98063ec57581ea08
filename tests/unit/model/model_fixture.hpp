// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support/models.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/model/family.hpp"
#include "trireme/model/loss.hpp"
#include "trireme/model/model.hpp"

namespace trireme::test {

/// Model, input and precision of a fixture.
struct ModelFixtureOptions {
  model::ModelOptions model = {};
  Shape input;  ///< [B, H, W, C]; text: [B, T]
  std::int64_t classes = 0;
  bool is_map = false;  ///< each pixel has a label
  DType compute = DType::float32;
  float label_smoothing = 0;
  std::vector<std::string> frozen = {};  ///< names of weights
  ops::ContextOptions context = {};
};

/// A whole model on one rank whose blocks are called one after the other, for tests of blocks and
/// heads without trainer, reducer or files.
///
/// A first run on the meta device measures the memory. Inputs and labels are functions of their
/// index; every seventh label is missing (-1).
class ModelFixture {
 public:
  using Bytes = std::array<std::int64_t, 8>;
  explicit ModelFixture(const ModelFixtureOptions& options)
      : ModelFixture(options, DeviceKind::cpu, measure(options)) {}
  /// Returns the peak bytes of all arenas, measured on the meta device.
  static Bytes measure(const ModelFixtureOptions& options) {
    ModelFixture meta(options, DeviceKind::meta, {});
    meta.exercise();
    return meta.peaks();
  }

  /// Runs everything that allocates memory.
  void exercise() {
    gradients();
    evaluate();
    if (!options_.is_map) logits(0);
  }

  /// Returns the output of the last block.
  Tensor forward(bool training) {
    pass.begin_forward(training, sample_keys_.data());
    Tensor x = input_;
    for (int i = 0; i < model.block_count(); ++i) {
      pass.enter_block();
      x = model.block(i).forward(pass, x);
    }
    return x;
  }

  /// Runs forward, loss and backward of the micro-batch. Returns the loss per label.
  double gradients(ops::Write write = ops::Write::assign) {
    const Tensor x = forward(true);
    pass.begin_backward(write, 1);
    pass.enter_block();
    Tensor dy = model.head().loss(pass, x, labels_,
                                  {.kind = &model::default_loss(AnswerKind::one_class),
                                   .label_smoothing = options_.label_smoothing,
                                   .gradient_scale = static_cast<float>(1.0 / valid_)},
                                  sums_);
    for (int i = model.block_count(); i-- > 0;) {
      pass.enter_block();
      dy = model.block(i).backward(pass, dy);
    }
    return context.meta() ? 0 : sums_.as<double>()[0] / valid_;
  }

  /// Evaluates the micro-batch. Returns loss sum, label count, labels ranked first, labels among
  /// the first five.
  std::array<double, 4> evaluate() {
    const Tensor x = forward(false);
    pass.enter_block();
    model.head().loss(pass, x, labels_,
                      {.kind = &model::default_loss(AnswerKind::one_class),
                       .label_smoothing = options_.label_smoothing},
                      sums_);
    std::array<double, 4> sums{};
    if (!context.meta()) std::copy_n(sums_.as<double>(), 4, sums.begin());
    return sums;
  }

  /// Returns the logits of one row in evaluation.
  Tensor logits(std::int64_t row) {
    const Tensor x = forward(false);
    pass.enter_block();
    return model.head().logits(pass, x, row);
  }

  Bytes peaks() const {
    return {parameters_.peak_bytes(),     gradients_.peak_bytes(),
            kept_.peak_bytes(),           flow_arenas_[0].peak_bytes(),
            flow_arenas_[1].peak_bytes(), workspace_.peak_bytes(),
            library_.peak_bytes(),        data_.peak_bytes()};
  }
  const Tensor& labels() const { return labels_; }
  const ModelFixtureOptions& options() const { return options_; }

 private:
  ModelFixture(const ModelFixtureOptions& options, DeviceKind kind, const Bytes& bytes)
      : options_(options),
        parameters_({kind, 0}, "parameters", bytes[0]),
        gradients_({kind, 0}, "gradients", bytes[1]),
        kept_({kind, 0}, "activations", bytes[2]),
        flow_arenas_{Arena({kind, 0}, "flow 0", bytes[3]), Arena({kind, 0}, "flow 1", bytes[4])},
        workspace_({kind, 0}, "workspace", bytes[5]),
        library_({kind, 0}, "prepared weights", bytes[6]),
        data_({kind, 0}, "data", bytes[7]),
        flow_(flow_arenas_[0], flow_arenas_[1]),
        context(Stream{{kind, 0}, nullptr}, workspace_, library_, DeviceKind::cpu, options.context),
        model(options.model, options.input,
              model::outputs_of(options.model, options.input, options.classes, options.is_map)),
        list(declared(model, options.frozen)),
        layout(list, std::int64_t{1} << 20, options.compute),
        store(list, layout, {}, parameters_, gradients_),
        pass({context, store, tensor_, flow_}, kept_) {
    store.initialize(context, 1);
    take_data();
  }

  static parallel::ParameterList declared(const model::Model& model,
                                          const std::vector<std::string>& frozen) {
    parallel::ParameterList list;
    model.declare(list, 0, model.block_count() + 1);
    for (const std::string& name : frozen)
      list.freeze({static_cast<std::int32_t>(list.find(name))});
    return list;
  }

  void take_data() {
    const bool tokens = takes_tokens(options_.model);
    input_ = data_.allocate(tokens ? DType::int32 : DType::float32, options_.input);
    const Shape& input = options_.input;
    labels_ = data_.allocate(DType::int32, {tokens            ? input_.elements()
                                            : options_.is_map ? input[0] * input[1] * input[2]
                                                              : input[0]});
    sums_ = data_.allocate(DType::float64, {4});
    for (std::int64_t b = 0; b < options_.input[0]; ++b)
      sample_keys_.push_back(mix64(static_cast<std::uint64_t>(b) + 1));
    for (std::int64_t i = 0; i < labels_.elements(); ++i) valid_ += i % 7 == 6 ? 0 : 1;
    if (context.meta()) return;
    const auto number = [](std::uint64_t key, std::int64_t index) {
      return uniform_at(key, static_cast<std::uint64_t>(index));
    };
    for (std::int64_t i = 0; i < input_.elements(); ++i) {
      if (tokens) {
        input_.as<std::int32_t>()[i] =
            static_cast<std::int32_t>(number(3, i) * static_cast<double>(options_.classes));
      } else {
        input_.as<float>()[i] = static_cast<float>(2 * number(3, i) - 1);
      }
    }
    for (std::int64_t i = 0; i < labels_.elements(); ++i) {
      labels_.as<std::int32_t>()[i] =
          i % 7 == 6
              ? -1
              : static_cast<std::int32_t>(number(4, i) * static_cast<double>(options_.classes));
    }
  }

  ModelFixtureOptions options_;
  Arena parameters_, gradients_, kept_, flow_arenas_[2], workspace_, library_, data_;
  model::PingPongArena flow_;
  parallel::TensorGroup tensor_;
  Tensor input_, labels_, sums_;
  std::vector<std::uint64_t> sample_keys_;
  double valid_ = 0;

 public:
  ops::Context context;
  model::Model model;
  parallel::ParameterList list;
  parallel::FlatLayout layout;
  parallel::ParameterStore store;
  model::MicroBatchPass pass;
};

inline ModelFixtureOptions small_resnet(int depth = 8, std::int64_t width = 8) {
  return {.model = resnet(depth, width), .input = {10, 8, 8, 1}, .classes = 5};
}

/// Returns a transformer with two layers of width 24, 4 heads, context 6 and 37 tokens. GPT-2's
/// form, or Llama's with 2 key/value heads.
inline ModelFixtureOptions small_gpt(bool llama = false, double dropout = 0) {
  ModelFixtureOptions options{.model = small_gpt2(), .input = {3, 6}, .classes = 37};
  options.model.as<model::TransformerOptions>().dropout = dropout;
  if (llama) make_llama(options.model);
  return options;
}

}  // namespace trireme::test
