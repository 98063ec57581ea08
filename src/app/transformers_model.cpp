// SPDX-License-Identifier: Apache-2.0
//
// The model of a deck and config.json of Hugging Face's transformers.
//
// For import the file becomes the lines of a table [model]; they are parsed as a deck, so that its
// rules hold, and compared key by key as the decks of a restart are. Export goes the other way.
#include "transformers_model.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

/// Returns the lines behind line feeds, indented as messages need it.
std::string indented(std::string_view lines) {
  std::string text;
  while (!lines.empty()) text += fmt::format("\n    {}", take_line(lines));
  return text;
}

using checkpoint::TransformersConfig;
using Family = TransformersConfig::Family;

/// Returns the table [model] of a deck for a model.
std::string deck_lines(const TransformersConfig& config) {
  const bool is_gpt2 = config.family == Family::gpt2;
  std::string lines = fmt::format(
      "[model]\nkind = \"gpt\"\nlayers = {}\nheads = {}\nkv_heads = {}\nwidth = {}\n"
      "mlp_width = {}\ncontext = {}\nvocabulary = {}\nmlp = \"{}\"\nnorm = \"{}\"\n"
      "norm_epsilon = {}\npositions = \"{}\"\n",
      config.layers, config.heads, config.kv_heads, config.width, config.mlp_width, config.context,
      config.vocabulary, is_gpt2 ? "gelu" : "swiglu", is_gpt2 ? "layer" : "rms",
      config.norm_epsilon, is_gpt2 ? "learned" : "rope");
  if (!is_gpt2) lines += fmt::format("rope_base = {}\n", config.rope_base);
  return lines +
         fmt::format("bias = {}\ntie_embeddings = {}\n", config.bias, config.tie_embeddings);
}

/// Returns the name that config.json has for a key of [model].
const char* name_in_config(const TransformersConfig& config, const std::string& key) {
  const checkpoint::TransformersKeys& keys = checkpoint::transformers_keys(config.family);
  const std::pair<const char*, const char*> names[] = {
      {"model.layers", keys.layers},
      {"model.heads", keys.heads},
      {"model.kv_heads", keys.kv_heads},
      {"model.width", keys.width},
      {"model.mlp_width", keys.mlp_width},
      {"model.vocabulary", keys.vocabulary},
      {"model.context", keys.context},
      {"model.norm_epsilon", keys.norm_epsilon},
      {"model.rope_base", keys.rope_base},
      {"model.bias", keys.bias},
      {"model.tie_embeddings", keys.tie_embeddings}};
  const auto found = std::find_if(std::begin(names), std::end(names),
                                  [&](const auto& pair) { return key == pair.first; });
  return found == std::end(names) ? "model_type" : found->second;
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

}  // namespace

std::optional<TransformersConfig> compare_with_transformers(const std::string& path,
                                                            const deck::Deck& deck) {
  std::optional<TransformersConfig> config = checkpoint::read_transformers_config(path);
  if (!config) return std::nullopt;
  // Rotary positions have no table: a shorter context computes the same.
  if (config->family == Family::llama && deck.model.gpt.context < config->context)
    config->context = deck.model.gpt.context;
  const std::string lines = deck_lines(*config);
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
                            name_in_config(*config, key));
  }
  validate(problems.empty(),
           "{}: describes another model than the deck:{}\n  the deck of this model has the lines{}",
           path, problems, indented(lines));
  return config;
}

TransformersConfig transformers_config_of(const model::TransformerOptions& gpt,
                                          std::int64_t vocabulary) {
  using model::MlpKind, model::NormKind, model::PositionKind;
  const bool is_gpt2 = gpt.positions == PositionKind::learned && gpt.norm == NormKind::layer &&
                       gpt.mlp == MlpKind::gelu && gpt.bias && gpt.kv_heads == gpt.heads,
             is_llama = gpt.positions == PositionKind::rope && gpt.norm == NormKind::rms &&
                        gpt.mlp == MlpKind::swiglu;
  validate(is_gpt2 || is_llama,
           "transformers has no model for this deck, only for GPT-2's form (positions = "
           "\"learned\", norm = \"layer\", mlp = \"gelu\", bias = true, kv_heads = heads) and for "
           "Llama's (\"rope\", \"rms\", \"swiglu\"); write the tensors alone: --out "
           "NAME.safetensors");
  return {.family = is_gpt2 ? Family::gpt2 : Family::llama,
          .layers = gpt.layers,
          .heads = gpt.heads,
          .kv_heads = gpt.kv_heads,
          .width = gpt.width,
          .mlp_width = gpt.mlp_width,
          .vocabulary = vocabulary,
          .context = gpt.context,
          .norm_epsilon = gpt.norm_epsilon,
          .rope_base = gpt.rope_base,
          .bias = gpt.bias,
          .tie_embeddings = gpt.tie_embeddings};
}

}  // namespace trireme::app
