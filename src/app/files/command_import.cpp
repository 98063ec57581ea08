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
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/commands.hpp"
#include "app/deck_source.hpp"
#include "stored_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/weights/import_export.hpp"
#include "trireme/checkpoint/weights/transformers_config.hpp"
#include "trireme/checkpoint/weights/weight_files.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/model/family.hpp"
#include "trireme/train/records/software_versions.hpp"

namespace trireme::app {
namespace {

struct ImportOptions {
  std::string source, checkpoint;
  DeckSource deck;
  checkpoint::FileMatrixOrder order = checkpoint::FileMatrixOrder::by_shapes;
  bool overwrite = false;
};

/// Returns the shape of the first of these tensors that is there. Throws InputError if none is, or
/// if it has another number of dimensions.
const Shape& shape_in(const checkpoint::WeightFiles& weights, const std::vector<std::string>& names,
                      int rank) {
  std::string hints;
  for (const std::string& name : names) {
    const auto found = weights.tensors().find(name);
    if (found == weights.tensors().end()) {
      hints += weights.hint_for_missing(name);
      continue;
    }
    const Shape& shape = found->second.shape;
    validate(shape.rank() == rank && *std::min_element(shape.begin(), shape.end()) > 0,
             "{} has shape {}, but must have {} dimensions", found->second.location,
             to_string(shape), rank);
    return shape;
  }
  validate(names.size() > 1,
           "{}: {} is missing, which sets the input or output size of the model{}", weights.path(),
           names.front(), hints);
  throw InputError(fmt::format("{}: has neither {}, which set the vocabulary{}", weights.path(),
                               fmt::join(names, " nor "), hints));
}

/// Throws InputError if the weights are those of a network that looks like one of the family.
void refuse_foreign(const checkpoint::WeightFiles& weights, const model::Family& family) {
  for (const auto& [name, tensor] : weights.tensors())
    for (const auto& [end, network] : family.foreign_tensors)
      validate(!name.ends_with(end),
               "{}: belongs to {}, which model.kind = \"{}\" does not compute; use the weights of "
               "a model without it",
               tensor.location, network, family.word);
}

/// Returns the lines behind line feeds, indented as messages need it.
std::string indented(std::string_view lines) {
  std::string text;
  while (!lines.empty()) text += fmt::format("\n    {}", take_line(lines));
  return text;
}

/// Returns the deck with these lines and the defaults of all other keys. Throws InputError if the
/// lines are none of a valid model.
deck::Deck parse_lines(const std::string& lines, const std::string& path) {
  try {
    return deck::parse("[run]\nname = \"model\"\n[data]\ntrain = \"none\"\n" + lines, "deck");
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: a deck cannot have its model: {}", path, error.what()));
  }
}

/// Reads a `config.json` and compares it with the model of the deck. Returns none if the file
/// describes no model of transformers. Throws InputError if it describes another model, with every
/// difference and the lines of a deck for it, or a model that this program does not compute.
std::optional<TransformersConfig> compare_with_transformers(const std::string& path,
                                                            const deck::Deck& deck) {
  std::optional<TransformersConfig> config = checkpoint::read_transformers_config(path);
  if (!config) return std::nullopt;
  const model::Family& family = family_of(deck.model);
  // Rotary positions have no table: a shorter context computes the same.
  if (config->family == TransformersConfig::Family::llama)
    config->context = std::min(config->context, family.context(deck.model));
  const std::string lines = family.deck_lines(*config);
  std::string problems;
  for (const deck::Difference& difference : deck::differences(deck, parse_lines(lines, path))) {
    const std::string& key = difference.key;
    // A regularization of training, or the memory of the head: not the function.
    if (!key.starts_with("model.") || key == "model.dropout" || key == "model.drop_path" ||
        key == "model.head_tile_mb")
      continue;
    problems += fmt::format("\n  {}: {} in the deck, {} in config.json ({})", key,
                            difference.before.empty() ? "not given" : difference.before,
                            difference.after.empty() ? "not used" : difference.after,
                            checkpoint::deciding_member(config->family, key));
  }
  validate(problems.empty(),
           "{}: describes another model than the deck:{}\n  the deck of this model has the lines{}",
           path, problems, indented(lines));
  return config;
}

/// Compares the deck of a model that transformers may have with the config.json beside the weights,
/// and prints a line about it. Throws InputError if they differ.
std::optional<TransformersConfig> compare_with_config(const checkpoint::WeightFiles& weights,
                                                      const deck::Deck& deck) {
  if (family_of(deck.model).deck_lines == nullptr) return std::nullopt;
  const std::optional<std::string> path = weights.config();
  std::optional<TransformersConfig> config;
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
  refuse_foreign(weights, family);
  const model::ShapeInFile shape_of = [&](const std::vector<std::string>& names, int rank) {
    return shape_in(weights, names, rank);
  };
  const Answer& answer = deck::answer_of(deck);
  const std::int64_t classes = family.classes_in(deck.model, answer, {}, shape_of);
  validate(answer.kind != AnswerKind::pixels || classes == deck.target.classes,
           "{}: its head has {} for each pixel, but target.classes = {}", options.source,
           counted(classes, "output", "outputs"), deck.target.classes);
  const Shape input = family.input_in(deck.model, shape_of);
  validate(!config || config->vocabulary == classes,
           "{}: its embedding has {} rows, but vocab_size = {} in the config.json beside it",
           options.source, classes, config ? config->vocabulary : 0);
  model::ModelOptions model_options = deck.model;
  family.set_vocabulary(model_options, classes);
  const AnswerExtents outputs = model::outputs_of(model_options, input, classes, answer.is_map);
  const model::Model model(model_options, input, outputs);
  checkpoint::Info info;
  info.deck = deck::write(deck);
  info.written_by = train::to_line(train::software_versions());
  const checkpoint::FileMatrixOrder order =
      checkpoint::import_weights(weights, model.parameters(), info, target, options.order);
  const std::string_view remark = family.linear_order_remark(deck.model);
  if (order == checkpoint::FileMatrixOrder::linear && !remark.empty()) fmt::print("{}\n", remark);
  fmt::print("{}: {} tensors, {} weights, {} classes; step 0, no optimizer state\n",
             options.checkpoint, model.parameters().entries().size(), model.weight_count(),
             classes);
  return ExitCode::done;
}

}  // namespace

void add_import(CommandLine& line) {
  Command command = line.add("import", "Make a checkpoint from safetensors files");
  const auto options = std::make_shared<ImportOptions>();
  command
      .option("SOURCE", options->source,
              "The .safetensors file, an index of several, or the folder of one of them, under the "
              "names of torchvision (ResNet), timm (ViT), GPT-2 or Llama")
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
