// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace trireme {

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
  double dropout = 0;  ///< the probability in training, which is written only
  bool operator==(const TransformersConfig&) const = default;
};

}  // namespace trireme
