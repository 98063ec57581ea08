// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "support/scratch.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

using test::ScratchFolder;

/// A small model with random values: a convolution in channels-last order, a matrix, a vector, a
/// running mean and one optimizer slot.
struct ExampleModel {
  std::vector<parallel::ParameterSpec> specs;
  std::vector<std::string> paths;
  std::vector<std::vector<float>> values;

  ExampleModel() {
    add("model", "conv1.weight", {8, 3, 5, 5}, parallel::InnerOrder::channels_last);
    add("model", "fc.weight", {11, 13}, parallel::InnerOrder::plain);
    add("model", "fc.bias", {11}, parallel::InnerOrder::plain);
    add("buffers", "bn1.running_mean", {8}, parallel::InnerOrder::plain);
    add("optimizer/momentum", "fc.weight", {11, 13}, parallel::InnerOrder::plain);
  }
  void add(const std::string& group, const std::string& name, const Shape& shape,
           parallel::InnerOrder inner) {
    parallel::ParameterSpec spec;
    spec.name = name;
    spec.shape = shape;
    spec.inner = inner;
    spec.initializer = {parallel::Initializer::Kind::normal, 1};
    specs.push_back(spec);
    paths.push_back(group + "/" + name);
    values.emplace_back(static_cast<std::size_t>(shape.elements()));
    parallel::initialize_rows(spec, parallel::TensorPartition(spec), specs.size(), 0, spec.rows(),
                              values.back().data());
  }
  /// Returns one slice for each whole tensor.
  std::vector<TensorSlice> slices() {
    std::vector<TensorSlice> slices;
    for (std::size_t i = 0; i < specs.size(); ++i)
      slices.push_back({paths[i], &specs[i], 0, specs[i].rows(), values[i].data()});
    return slices;
  }
};

/// Returns metadata that uses every field and every type of value.
inline Info example_info() {
  Info info;
  info.step = 1000;
  info.epoch = 3;
  info.epoch_samples = 512;
  info.samples = 256000;
  info.updates = 998;
  info.deck = "[run]\nname = \"example\"\n";
  info.classes = {"shirt", "a longer name", "\xC3\xA9tui"};
  info.state = {{"seed", std::uint64_t{0xFFFFFFFFFFFFFFF0}},
                {"best", 0.9375},
                {"skipped", std::int64_t{-2}},
                {"note", std::string("kept")}};
  return info;
}

}  // namespace trireme::checkpoint
