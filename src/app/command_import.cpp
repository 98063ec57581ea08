// SPDX-License-Identifier: Apache-2.0
//
// `trireme import`: makes a checkpoint of step 0 from safetensors files.
//
// Checks the output path, parses the deck, compares it with config.json, and takes input shape and
// number of classes from the weights. Then builds the model for its list of parameters and converts
// the weights (src/checkpoint). Runs on one process.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "commands.hpp"
#include "deck_source.hpp"
#include "stored_file.hpp"
#include "transformers_model.hpp"
#include "trireme/base/check.hpp"
#include "trireme/checkpoint/import_export.hpp"
#include "trireme/checkpoint/weight_files.hpp"
#include "trireme/model/family.hpp"
#include "trireme/train/software_versions.hpp"

namespace trireme::app {
namespace {

struct ImportOptions {
  std::string source, checkpoint;
  DeckSource deck;
  checkpoint::FileMatrixOrder order = checkpoint::FileMatrixOrder::by_shapes;
  bool overwrite = false;
};

/// Returns the shape of a tensor of the files. Throws InputError if it is missing or has another
/// number of dimensions.
const Shape& shape_in(const checkpoint::WeightFiles& weights, const std::string& name, int rank) {
  const auto found = weights.tensors().find(name);
  validate(found != weights.tensors().end(),
           "{}: {} is missing, which sets the input or output size of the model{}", weights.path(),
           name, weights.hint_for_missing(name));
  const Shape& shape = found->second.shape;
  validate(shape.rank() == rank && *std::min_element(shape.begin(), shape.end()) > 0,
           "{} has shape {}, but must have {} dimensions", found->second.location, to_string(shape),
           rank);
  return shape;
}

/// Returns the shape of the first of these tensors that is there. Throws InputError if none is.
const Shape& shape_in(const checkpoint::WeightFiles& weights, const std::vector<std::string>& names,
                      int rank) {
  if (names.size() == 1) return shape_in(weights, names.front(), rank);
  std::string hints;
  for (const std::string& name : names) {
    if (weights.tensors().contains(name)) return shape_in(weights, name, rank);
    hints += weights.hint_for_missing(name);
  }
  throw InputError(fmt::format("{}: has neither {}, which set the vocabulary{}", weights.path(),
                               fmt::join(names, " nor "), hints));
}

/// Compares the deck of a language model with the config.json beside the weights, and prints a line
/// about it. Throws InputError if they differ.
std::optional<checkpoint::TransformersConfig> compare_with_config(
    const checkpoint::WeightFiles& weights, const deck::Deck& deck) {
  if (!takes_tokens(deck.model)) return std::nullopt;
  const std::optional<std::string> path = weights.config();
  std::optional<checkpoint::TransformersConfig> config;
  if (path) config = compare_with_transformers(*path, deck);
  if (config)
    fmt::print("config.json beside the weights describes the model of the deck\n");
  else if (path)
    fmt::print(
        "{} has no model_type of transformers and is not compared: heads, activation, epsilon and "
        "positions are those of the deck\n",
        *path);
  else
    fmt::print(
        "no config.json of transformers is beside the weights: heads, activation, epsilon "
        "and positions are those of the deck\n");
  return config;
}

ExitCode import_command(const ImportOptions& options) {
  std::vector<std::string> inputs = {options.source, options.deck.path};
  check_output(options.checkpoint, inputs, options.overwrite);
  const deck::Deck deck = read_deck(options.deck, comm::Communicator());
  const checkpoint::WeightFiles weights(options.source);
  for (std::string& path : weights.source_files()) inputs.push_back(std::move(path));
  if (std::optional<std::string> config = weights.config()) inputs.push_back(std::move(*config));
  const std::string target = check_output(options.checkpoint, inputs, options.overwrite);
  const auto config = compare_with_config(weights, deck);
  const model::Family& family = family_of(deck.model);
  const model::FileSizes ends =
      family.sizes_in(deck.model, [&](const std::vector<std::string>& names, int rank) -> Shape {
        return shape_in(weights, names, rank);
      });
  validate(!config || config->vocabulary == ends.classes,
           "{}: its embedding has {} rows, but vocab_size = {} in the config.json beside it",
           options.source, ends.classes, config ? config->vocabulary : 0);
  model::ModelOptions model_options = deck.model;
  family.set_vocabulary(model_options, ends.classes);
  const model::Model model(model_options, ends.input, ends.classes);
  checkpoint::Info info;
  info.deck = deck::write(deck);
  info.written_by = train::to_line(train::software_versions());
  const checkpoint::FileMatrixOrder order =
      checkpoint::import_weights(weights, model.parameters(), info, target, options.order);
  if (order == checkpoint::FileMatrixOrder::linear && deck.model.gpt.mlp == model::MlpKind::gelu)
    fmt::print(
        "matrices are [out, in], as nanoGPT writes them; its GELU is the exact one, that of "
        "the deck's model is the tanh form\n");
  fmt::print("{}: {} tensors, {} weights, {} classes; step 0, no optimizer state\n",
             options.checkpoint, model.parameters().entries().size(), model.weight_count(),
             ends.classes);
  return ExitCode::done;
}

}  // namespace

void add_import(CommandLine& line) {
  Command command = line.add("import", "Make a checkpoint from safetensors files");
  const auto options = std::make_shared<ImportOptions>();
  command
      .option("SOURCE", options->source,
              "The .safetensors file, an index of several, or the folder of one of them, under the "
              "names of torchvision (ResNet), GPT-2 or Llama")
      .required();
  add_deck_options(command, options->deck);
  command.option("--out", options->checkpoint, "The checkpoint to write")
      .type_name("CHECKPOINT")
      .required();
  command
      .option(
          "--matrix-order",
          [options](const std::string& order) {
            options->order = order == "linear" ? checkpoint::FileMatrixOrder::linear
                                               : checkpoint::FileMatrixOrder::conv1d;
          },
          "Names of GPT-2: linear for matrices [out, in], as nanoGPT writes them, conv1d for [in, "
          "out]; default: by the matrices that are not square")
      .one_of({"linear", "conv1d"});
  command.flag("--overwrite", options->overwrite, "Replace an existing checkpoint");
  command.footer(
      "Examples:\n  trireme import resnet50.safetensors inputs/recipes/resnet50_large_batch.toml "
      "--out resnet50.h5\n"
      "  trireme import gpt2/ inputs/recipes/gpt2_124m.toml --out gpt2.h5");
  command.set_single_rank_action([options] { return import_command(*options); });
}

}  // namespace trireme::app
