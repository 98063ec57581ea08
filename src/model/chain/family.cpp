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

bool is_batch_norm(const Entry& entry) {
  const auto* norm = entry.as<chain::Norm>();
  return norm && norm->form == chain::NormForm::batch;
}

std::optional<BrokenRule> missing_chain_norm(const ModelOptions& options) {
  if (chain::contains(options.as<ChainOptions>().blocks, is_batch_norm)) return std::nullopt;
  return BrokenRule{"model.blocks", "model.blocks has no batch norm; use sync_batch_norm = false"};
}

/// Returns an input for which every tensor has its shape in the file.
Shape input_of(const ModelOptions& options, const ShapeInFile& shape_of) {
  const std::vector<Entry>& blocks = options.as<ChainOptions>().blocks;
  constexpr std::int64_t max_side = 1024;
  std::int64_t channels = 0;
  if (const Entry& first = blocks.front(); first.as<chain::Conv>() || first.as<chain::Patches>())
    channels = shape_of({"blocks.0.weight"}, 4)[1];
  // A tensor that is missing, or of another rank, is for the import to report.
  const auto has_its_shape = [&](const parallel::ParameterSpec& spec) {
    try {
      return spec.shape == shape_of({spec.name}, spec.shape.rank());
    } catch (const InputError&) {
      return true;
    }
  };
  std::string misfit;
  bool is_built = false;
  const auto fits = [&](const Shape& input) {
    try {
      const ModelParts parts = chain::make_network(blocks, input, {});
      parallel::ParameterList list;
      for (const auto& block : parts.blocks) block->declare(list);
      parts.head->declare(list);
      is_built = true;
      return std::ranges::all_of(list.entries(),
                                 [&](const auto& entry) { return has_its_shape(entry.spec); });
    } catch (const InputError& error) {
      if (misfit.empty()) misfit = error.what();
      return false;
    }
  };
  // Images of common sizes come first, since a network with a global pool takes any.
  std::vector<std::int64_t> sides{224, 32, 28};
  for (std::int64_t side = 1; side <= max_side; ++side) sides.push_back(side);
  const std::vector<std::int64_t> counts =
      channels > 0 ? std::vector<std::int64_t>{channels} : std::vector<std::int64_t>{3, 1};
  for (const std::int64_t side : sides)
    for (const std::int64_t count : counts)
      if (const Shape input{1, side, side, count}; fits(input)) return input;
  validate(is_built, "no square image fits: {}", misfit);
  throw InputError(
      "the tensors of the file do not fit model.blocks with any square image; use the "
      "blocks of the deck that the weights are from");
}

}  // namespace

extern constinit const Family chain_family{
    .word = "chain",
    .block_list = "model.blocks",
    .size_advice = "smaller channels and widths of model.blocks",
    .map_advice = "change the strides, pools and upsample blocks of model.blocks",
    .defaults = [] { return std::any(ChainOptions()); },
    .visit = visit_chain,
    .describe =
        [](const ModelOptions& options) {
          const std::int64_t count = chain::block_count(options.as<ChainOptions>().blocks);
          return "chain of " + counted(count, "block", "blocks");
        },
    .missing_batch_norm = missing_chain_norm,
    .reset_beside_weights =
        [](ModelOptions& options) {
          auto& blocks = options.as<ChainOptions>().blocks;
          blocks = chain::comparable(blocks);
        },
    .differing_block =
        [](const ModelOptions& before, const ModelOptions& after) {
          return chain::differing_block(before.as<ChainOptions>().blocks,
                                        after.as<ChainOptions>().blocks);
        },
    .classes_in =
        [](const ModelOptions& options, const Answer&, const Shape& input,
           const ShapeInFile& shape_of) {
          return chain::output_shape(options.as<ChainOptions>().blocks,
                                     input.rank() > 0 ? input : input_of(options, shape_of))
              .back();
        },
    .input_in = input_of,
    .map_of =
        [](const ModelOptions& options, const Shape& input) {
          const Shape output = chain::output_shape(options.as<ChainOptions>().blocks, input);
          return output.rank() == 3 ? Shape{output[0], output[1]} : Shape();
        },
    .make =
        [](const ModelOptions& options, const Shape& input, const AnswerExtents& outputs,
           const TensorPlacement& /*placement*/) {
          return chain::make_network(options.as<ChainOptions>().blocks, input, outputs);
        }};

}  // namespace trireme::model
