// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/broken_rule.hpp"
#include "trireme/keys/reader.hpp"
#include "trireme/model/model.hpp"
#include "trireme/tensor/sample_kind.hpp"

namespace trireme::model {

/// The sizes of a model that a run takes from its data, and an import from the file of weights.
struct FileSizes {
  Shape input;
  std::int64_t classes = 0;
};

/// Returns the shape of the first of these tensors that a file of weights has. Throws InputError if
/// it has none, or one with another number of dimensions.
using ShapeInFile = std::function<Shape(const std::vector<std::string>& names, int rank)>;

/// A family of models: the one place that knows its word in decks, and its answers to everything
/// that other code asks about a kind of model. A new family is a folder of src/model and a line in
/// families(). The answers that have a default are those of a model of images.
struct Family {
  ModelKind kind;
  /// The value of model.kind.
  const char* word;
  /// The samples on which it trains.
  SampleKind input;
  /// A tensor group may split its layers.
  bool splits_by_tensor;
  /// It continues a text.
  bool generates;
  /// Trains with precision.compute = "float8".
  bool computes_float8;
  /// A sample is one row of its matrix products; else each pixel or token is one.
  bool flattens;
  /// Advice for a model that is too large, as in "a smaller model.width".
  const char* size_advice;

  /// Visits its keys of [model]. A key of several families has the same name in each.
  void (*visit)(keys::Visitor&, ModelOptions&);
  /// Sets the options whose default depends on others.
  void (*fill_in_defaults)(ModelOptions&, const keys::Reader&) = [](ModelOptions&,
                                                                    const keys::Reader&) {};
  /// Adds a mistake for each pair of its keys that contradict each other.
  void (*check)(const ModelOptions&, keys::Reader&) = [](const ModelOptions&, keys::Reader&) {};
  /// Returns the model in words, as in "resnet, depth 8, width 16".
  std::string (*describe)(const ModelOptions&);
  /// Returns why the model has no batch norm, with the key that decides; none if it has.
  std::optional<BrokenRule> (*missing_batch_norm)(const ModelOptions&);
  /// Returns the message of debug.joined_norms = true for options that do not allow it, with the
  /// key that decides.
  std::optional<BrokenRule> (*broken_joined_norms_rule)(const ModelOptions&);
  /// Returns the length of a sample in tokens; 0 for images.
  std::int64_t (*context)(const ModelOptions&) = [](const ModelOptions&) {
    return std::int64_t{0};
  };
  /// Returns the number of different tokens; 0: taken from the data.
  std::int64_t (*vocabulary)(const ModelOptions&) = [](const ModelOptions&) {
    return std::int64_t{0};
  };
  /// Sets the number of different tokens. No effect for images.
  void (*set_vocabulary)(ModelOptions&, std::int64_t) = [](ModelOptions&, std::int64_t) {};
  /// Returns the largest tensor group that can split the layers.
  std::int64_t (*max_tensor_size)(const ModelOptions&) = [](const ModelOptions&) {
    return std::int64_t{1};
  };
  /// Returns the shape of a batch of one sample, and the number of classes, from the tensors of a
  /// file with the names of docs/reference/tensor_names.md.
  FileSizes (*sizes_in)(const ModelOptions&, const ShapeInFile&);
  /// Returns the blocks and the head. Arguments as for Model, whose rules have been checked.
  ModelParts (*make)(const ModelOptions&, const Shape& input, std::int64_t classes,
                     const TensorPlacement&);
};

/// Returns all families, in the order in which documents list them.
std::span<const Family* const> families();

const Family& family_of(const ModelOptions& options);

/// Returns whether the samples of the model are tokens.
inline bool takes_tokens(const ModelOptions& options) {
  return family_of(options).input == SampleKind::tokens;
}

/// Returns the condition that a family has a property, as in `kind = "resnet" or "mlp"`.
std::string kinds_with(bool (*property)(const Family&));
/// The same for the samples of the families.
std::string kinds_with(SampleKind input);

}  // namespace trireme::model
