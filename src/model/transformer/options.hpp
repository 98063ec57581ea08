// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "model/kinds.hpp"

namespace trireme::model {

enum class PositionKind : std::uint8_t { learned, rope };

/// Keys of [model] for kind = "gpt", a decoder-only transformer. GPT-2's form (Radford et al. 2019)
/// has learned positions, layer norm, GELU and biases; Llama's (Touvron et al. 2023) has rope, rms
/// and swiglu. Any mixture is valid. The kind of positions selects the tensor names.
struct TransformerOptions {
  std::int64_t layers = 12, heads = 12, width = 768, context = 1024;
  std::int64_t kv_heads = 0;  ///< 0: missing in the deck, which fills in `heads`
  /// Filled in by the deck: 4 width for gelu; 8/3 width, rounded up to a multiple of 64, for
  /// swiglu.
  std::int64_t mlp_width = 0;
  /// 0 until it is taken from the training data.
  std::int64_t vocabulary = 0;
  MlpKind mlp = MlpKind::gelu;
  NormKind norm = NormKind::layer;
  PositionKind positions = PositionKind::learned;
  double rope_base = 10000;    ///< positions = rope: base of the frequencies
  double norm_epsilon = 1e-5;  ///< is added to the variance, or to the mean of squares
  bool bias = true;            ///< default: true with learned positions, false with rope
  bool tie_embeddings = true;
  double dropout = 0;
  double drop_path = 0;  ///< stochastic depth: probability at the last block
  /// MiB of the float32 logits that the head computes at once; 0: by the device.
  std::int64_t head_tile_mb = 0;
  /// Elements of one attention head.
  std::int64_t head_width() const { return width / heads; }
};

}  // namespace trireme::model
