// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::checkpoint {

/// A language model as `config.json` of Hugging Face's transformers describes it. The defaults are
/// not those of transformers.
struct TransformersConfig {
  enum class Family : std::uint8_t {
    gpt2,  ///< learned positions, layer norm, tanh GELU, biases; as many key heads as heads
    llama  ///< rotary positions, RMS norm, SwiGLU; also "mistral"
  };
  Family family = Family::gpt2;
  std::int64_t layers = 0, heads = 0, kv_heads = 0, width = 0, mlp_width = 0, vocabulary = 0;
  std::int64_t context = 0;  ///< positions for which the model was made
  double norm_epsilon = 0;
  double rope_base = 0;  ///< llama: of the rotary positions
  bool bias = true;      ///< of all linear layers in the blocks
  bool tie_embeddings = true;
  bool operator==(const TransformersConfig&) const = default;
};

/// The names that members have in `config.json`; a member without a name of its own follows from
/// `model_type`.
struct TransformersKeys {
  const char *layers, *heads, *kv_heads, *width, *mlp_width, *vocabulary, *context, *norm_epsilon,
      *rope_base, *bias, *tie_embeddings;
};
const TransformersKeys& transformers_keys(TransformersConfig::Family family);

/// Reads a `config.json` of at most 1 MiB. A key that is missing has the default of transformers.
/// Returns none if the file has neither `model_type` nor `architectures` of one of the families.
///
/// Throws InputError with path, key and value for other text, for wrong values, for models that
/// Trireme does not compute (docs/reference/files.md lists them), and for keys that are not known:
/// they may change what a model computes.
std::optional<TransformersConfig> read_transformers_config(const std::string& path);

/// Returns the text of a `config.json`, with which transformers 4 and 5 load the model. `dropout`:
/// the probability in training.
std::string to_json(const TransformersConfig& config, double dropout);

}  // namespace trireme::checkpoint
