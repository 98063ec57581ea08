// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::model {

// Each enumerator is the word of the deck key with the same meaning.
enum class ModelKind : std::uint8_t { resnet, mlp, gpt };
enum class ResnetStem : std::uint8_t { imagenet, small };
enum class ResnetNorm : std::uint8_t { batch, group };
enum class MlpKind : std::uint8_t { gelu, swiglu };
enum class NormKind : std::uint8_t { layer, rms };
enum class PositionKind : std::uint8_t { learned, rope };

/// Keys of [model] for kind = "resnet", a residual network (He et al. 2016).
struct ResnetOptions {
  int depth = 18;
  std::int64_t width = 64;  ///< channels of the first stage
  ResnetStem stem = ResnetStem::imagenet;
  ResnetNorm norm = ResnetNorm::batch;
  bool zero_init_residual = false;
  double drop_path = 0;  ///< stochastic depth: probability at the last block
};

/// Keys of [model] for kind = "mlp", a multilayer perceptron.
struct MlpOptions {
  std::vector<std::int64_t> widths;  ///< of the hidden layers
};

/// Keys of [model] for kind = "gpt", a decoder-only transformer. GPT-2's form has learned
/// positions, layer norm, GELU and biases; Llama's has rope, rms and swiglu. Any mixture is valid.
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

/// Table [model] of the deck. Only the member of the chosen kind is used.
struct ModelOptions {
  ModelKind kind = ModelKind::resnet;
  ResnetOptions resnet;
  MlpOptions mlp;
  TransformerOptions gpt;
};

/// Returns the probability of stochastic depth at one of `blocks` residual blocks: linear from 0 at
/// the first to `last` at the last (Huang et al. 2016, section 3).
constexpr double drop_path_at(double last, std::int64_t block, std::int64_t blocks) {
  return blocks > 1 ? last * static_cast<double>(block) / static_cast<double>(blocks - 1) : 0;
}

/// Table [loss] of the deck.
struct LossOptions {
  double label_smoothing = 0;
};

}  // namespace trireme::model
