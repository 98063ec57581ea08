// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/broken_rule.hpp"
#include "trireme/keys/reader.hpp"
#include "trireme/model/model.hpp"
#include "trireme/tensor/sample_kind.hpp"
#include "trireme/tensor/transformers_config.hpp"

namespace trireme::model {

// Larger than any model in use, and small enough that products of extents cannot overflow.
inline constexpr double max_layers = 1024, max_width = 65536, max_length = 1 << 20;

/// An extent of a model, with its key or a description for messages.
using Extent = std::pair<const char*, std::int64_t>;

/// Returns the shape of the first of these tensors that a file of weights has. Throws InputError if
/// it has none, or one with another number of dimensions.
using ShapeInFile = std::function<Shape(const std::vector<std::string>& names, int rank)>;

/// A tensor by which a file shows a network that a family does not compute, though its other names
/// are the same.
struct ForeignTensor {
  const char* name_end;
  const char* network;  ///< as in "a distilled DeiT"
};

/// The default of a question: a function that returns an empty value.
struct NoAnswer {
  template <class Result, class... Arguments>
  using Function = Result (*)(Arguments...);
  template <class Result, class... Arguments>
  constexpr operator Function<Result, Arguments...>() const {
    return [](Arguments...) { return Result(); };
  }
};

/// Family::missing_batch_norm and broken_joined_norms_rule of a family without residual norms.
std::optional<BrokenRule> no_batch_norm(const ModelOptions& options);
std::optional<BrokenRule> no_joined_norms(const ModelOptions& options);

/// A family of models: the one place that knows its word in decks, and its answers to everything
/// that other code asks about a kind of model. A new family is a folder of src/model and a line in
/// families(). The answers that have a default are those of a model of images.
struct Family {
  /// The value of model.kind.
  const char* word;
  /// The samples on which it trains.
  SampleKind input = SampleKind::image;
  /// It continues a text.
  bool generates = false;
  /// Trains with precision.compute = "float8".
  bool computes_float8 = false;
  /// A sample is one row of its matrix products; else each pixel or token is one.
  bool flattens = false;
  /// The key that lists its blocks one by one; null: other keys decide its blocks.
  const char* block_list = nullptr;
  /// Advice for a model that is too large, as in "a smaller model.width".
  const char* size_advice;
  /// Advice for targets of other extents than the maps that it makes.
  const char* map_advice = "";
  /// The names, in files of weights, of the table whose rows are the vocabulary.
  std::span<const char* const> vocabulary_tables = {};
  /// Tensors for which import refuses a file.
  std::span<const ForeignTensor> foreign_tensors = {};

  /// Returns the defaults of its keys.
  std::any (*defaults)();
  /// Visits its keys of [model]. A key of several families has the same name in each.
  void (*visit)(keys::Visitor&, ModelOptions&);
  /// Sets the options whose default depends on others.
  void (*fill_in_defaults)(ModelOptions&, const keys::Reader&) = NoAnswer();
  /// Adds a mistake for each pair of its keys that contradict each other.
  void (*check)(const ModelOptions&, keys::Reader&) = NoAnswer();
  /// Returns the broken rules between its extents, which Model checks.
  std::vector<BrokenRule> (*broken_rules)(const ModelOptions&) = NoAnswer();
  /// Returns the model in words, as in "resnet, depth 8, width 16".
  std::string (*describe)(const ModelOptions&);
  /// Returns why the model has no batch norm, with the key that decides; none if it has.
  std::optional<BrokenRule> (*missing_batch_norm)(const ModelOptions&) = no_batch_norm;
  /// Returns the message of debug.joined_norms = true for options that do not allow it, with the
  /// key that decides.
  std::optional<BrokenRule> (*broken_joined_norms_rule)(const ModelOptions&) = no_joined_norms;
  /// Returns the length of a sample in tokens; 0 for images.
  std::int64_t (*context)(const ModelOptions&) = NoAnswer();
  /// Returns the number of different tokens; 0: taken from the data.
  std::int64_t (*vocabulary)(const ModelOptions&) = NoAnswer();
  /// Sets the number of different tokens. No effect for images.
  void (*set_vocabulary)(ModelOptions&, std::int64_t) = NoAnswer();
  /// Returns the extents that a tensor group splits, with their keys; none: it splits no layer.
  std::vector<Extent> (*split_extents)(const ModelOptions&) = NoAnswer();
  bool splits_by_tensor() const { return !split_extents(ModelOptions(*this)).empty(); }
  /// Returns the broken rule between the rows of a micro-batch and the size of the tensor group,
  /// which splits them under parallel.sequence. `input`: that of the model.
  std::optional<BrokenRule> (*broken_row_rule)(const ModelOptions&, const Shape& input,
                                               std::int64_t tensor_size,
                                               const KeyNotes&) = NoAnswer();
  /// Returns the extents of matrix products that the options alone decide.
  std::vector<Extent> (*product_extents)(const ModelOptions&) = NoAnswer();
  /// Returns, for each layer that reads earlier positions of a text, the elements that it keeps of
  /// a position on each rank of a tensor group of this size.
  std::vector<std::int64_t> (*cache_widths)(const ModelOptions&, int tensor_size) = NoAnswer();
  /// Lets the head compute at most this many MiB of logits at once (model.head_tile_mb). Returns
  /// false if it has no such limit, or a smaller one already.
  bool (*lower_head_tile)(ModelOptions&, std::int64_t mb) = NoAnswer();
  /// Returns the table [model] for a model of transformers; null: it has none of the family.
  std::string (*deck_lines)(const TransformersConfig&) = nullptr;
  /// Returns the model as transformers describes it; null like deck_lines. Throws InputError if it
  /// does not compute the model.
  TransformersConfig (*transformers_config)(const ModelOptions&, std::int64_t vocabulary) = nullptr;
  /// Returns a remark on weights whose matrices are [out, in] in the file; empty: none.
  std::string_view (*linear_order_remark)(const ModelOptions&) = NoAnswer();
  /// Resets the options in which decks of the same weights may differ: what only training uses, as
  /// dropout and initial values, what only costs memory, and what the shapes of tensors show.
  void (*reset_beside_weights)(ModelOptions&) = NoAnswer();
  /// Returns the first block that differs in two lists (block_list), as in "blocks.3".
  std::string (*differing_block)(const ModelOptions& before,
                                 const ModelOptions& after) = NoAnswer();
  /// Returns the number of classes, or outputs, from the tensors of a file with the names of
  /// docs/reference/tensor_names.md. `input`: shape of a batch, as far as it is known; else empty.
  std::int64_t (*classes_in)(const ModelOptions&, const Answer&, const Shape& input,
                             const ShapeInFile&);
  /// Returns the shape of a batch of one sample from these tensors; extents on which no tensor
  /// depends are any that the model takes. Throws InputError if the tensors do not tell it.
  Shape (*input_in)(const ModelOptions&, const ShapeInFile&);
  /// Returns the extents [height, width] of the map that the model makes of an input [batch,
  /// height, width, channels]; an empty shape if it gives one answer. Throws InputError as Model
  /// does. Null: no model of the family makes a map.
  Shape (*map_of)(const ModelOptions&, const Shape& input) = nullptr;
  bool makes_maps() const { return map_of != nullptr; }
  /// Returns the blocks and the head. Arguments as for Model, whose rules have been checked.
  ModelParts (*make)(const ModelOptions&, const Shape& input, const AnswerExtents& outputs,
                     const TensorPlacement&);
};

/// Returns all families, in the order in which documents list them.
std::span<const Family* const> families();

/// Returns whether the samples of the model are tokens.
inline bool takes_tokens(const ModelOptions& options) {
  return family_of(options).input == SampleKind::tokens;
}

/// Returns the outputs of a model with `count` of them, for each pixel if `is_map`. Throws
/// InputError if it does not make a map of this input.
AnswerExtents outputs_of(const ModelOptions& options, const Shape& input, std::int64_t count,
                         bool is_map);

/// Returns the condition that a family has a property, as in `kind = "resnet" or "mlp"`.
std::string kinds_with(const std::function<bool(const Family&)>& property);
/// The same for the samples of the families.
inline std::string kinds_with(SampleKind input) {
  return kinds_with([=](const Family& family) { return family.input == input; });
}

// The rules between the extents of a model and of its tensor group. The deck checks them when it is
// read, Model when it is built. Model alone checks that the tensor group is not larger than the
// vocabulary, which can follow from the data.

/// Returns the greatest size of a tensor group, which divides all extents that it splits.
std::int64_t max_tensor_size(const ModelOptions& options);

/// Returns the broken rule between the model and the size of the tensor group that splits it.
std::optional<BrokenRule> broken_split_rule(const ModelOptions& options, std::int64_t tensor,
                                            const KeyNotes& notes = {});

}  // namespace trireme::model
