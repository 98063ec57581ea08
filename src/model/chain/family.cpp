// SPDX-License-Identifier: Apache-2.0
//
// The family of networks that the deck lists block by block: model.kind = "chain".
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "parts.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/family.hpp"

namespace trireme::model {
namespace {

using chain::Entry;

void visit_chain(keys::Visitor& v, ModelOptions& options) {
  v.field({"blocks",
           "chain: lists the blocks of the network in order (reference: blocks); required.",
           {},
           "list the blocks, as in blocks = [{ kind = \"flatten\" }, { kind = \"linear\", width = "
           "10 }]"},
          chain::block_list(options.as<ChainOptions>().blocks));
}

/// Returns the first norm of the list, or of a body in it, that is a batch norm; null: none.
const Entry* batch_norm_in(const std::vector<Entry>& list) {
  for (const Entry& entry : list) {
    const auto* norm = entry.as<chain::Norm>();
    if (norm && norm->form == chain::NormForm::batch) return &entry;
    const auto* residual = entry.as<chain::Residual>();
    if (const Entry* inner = residual ? batch_norm_in(residual->body) : nullptr) return inner;
  }
  return nullptr;
}

std::optional<BrokenRule> missing_chain_norm(const ModelOptions& options) {
  if (batch_norm_in(options.as<ChainOptions>().blocks)) return std::nullopt;
  return BrokenRule{"model.blocks", "model.blocks has no batch norm; use sync_batch_norm = false"};
}

/// Returns the outputs of the network, which its last block with weights decides.
std::int64_t classes_of(const ModelOptions& options, const ShapeInFile& /*shape_of*/) {
  const std::vector<Entry>& blocks = options.as<ChainOptions>().blocks;
  for (auto entry = blocks.rbegin(); entry != blocks.rend(); ++entry) {
    if (const auto* linear = entry->as<chain::Linear>()) return linear->width;
    if (const auto* conv = entry->as<chain::Conv>()) return conv->channels;
    if (entry->as<chain::Residual>()) break;
  }
  throw InputError(
      "model.blocks: the number of classes follows from the last linear or conv, but "
      "there is none behind the last residual; end with linear");
}

/// Returns an input for which every tensor has its shape in the file.
Shape input_of(const ModelOptions& options, const ShapeInFile& shape_of) {
  const std::vector<Entry>& blocks = options.as<ChainOptions>().blocks;
  constexpr std::int64_t max_side = 1024;
  std::int64_t channels = 0;
  if (const Entry& first = blocks.front(); first.as<chain::Conv>() || first.as<chain::Patches>())
    channels = shape_of({"blocks.0.weight"}, 4)[1];
  const auto fits = [&](const Shape& input) {
    try {
      const ModelParts parts = chain::make_network(blocks, input, 0);
      parallel::ParameterList list;
      for (const auto& block : parts.blocks) block->declare(list);
      parts.head->declare(list);
      return std::ranges::all_of(list.entries(), [&](const auto& entry) {
        return entry.spec.shape == shape_of({entry.spec.name}, entry.spec.shape.rank());
      });
    } catch (const InputError&) {
      return false;
    }
  };
  // Images of common sizes come first, since a network with a global pool takes any.
  for (const std::int64_t side : {224, 32, 28})
    for (const std::int64_t count : {channels > 0 ? channels : 3, channels > 0 ? channels : 1})
      if (fits({1, side, side, count})) return {1, side, side, count};
  for (std::int64_t side = 1; side <= max_side; ++side)
    for (const std::int64_t count : {channels > 0 ? channels : 3, channels > 0 ? channels : 1})
      if (fits({1, side, side, count})) return {1, side, side, count};
  throw InputError(
      "the tensors of the file do not fit model.blocks with any square image; use the "
      "blocks of the deck that the weights are from");
}

}  // namespace

extern constinit const Family chain_family{
    .word = "chain",
    .lists_blocks = true,
    .size_advice = "smaller channels and widths of model.blocks",
    .defaults = [] { return std::any(ChainOptions()); },
    .visit = visit_chain,
    .describe =
        [](const ModelOptions& options) {
          const std::int64_t count = chain::block_count(options.as<ChainOptions>().blocks);
          return "chain of " + counted(count, "block", "blocks");
        },
    .missing_batch_norm = missing_chain_norm,
    .classes_in = classes_of,
    .input_in = input_of,
    .make =
        [](const ModelOptions& options, const Shape& input, std::int64_t classes,
           const TensorPlacement& /*placement*/) {
          return chain::make_network(options.as<ChainOptions>().blocks, input, classes);
        }};

}  // namespace trireme::model
