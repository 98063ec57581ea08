// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/kinds.hpp"
#include "trireme/base/broken_rule.hpp"
#include "trireme/model/block.hpp"
#include "trireme/ops/activation.hpp"
#include "trireme/ops/attention.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::model {

/// A block of attention and mlp on the rows of samples, with tensor and sequence parallelism.
struct AttentionBlockOptions {
  /// Names of the tensors, without .weight and .bias. `qkv` and `up` (in SwiGLU gate and up): one,
  /// or one a section.
  struct Names {
    std::string block, attention_norm, projection, mlp_norm, down;
    std::vector<std::string> qkv, up;
    std::string attention_scale = {}, mlp_scale = {};  ///< those of LayerScale, without .gamma
  };
  Names names = {};
  std::int64_t index = 0;    ///< among the blocks of the model that keep earlier positions
  std::int64_t context = 1;  ///< rows of a sample
  std::int64_t width = 0, heads = 1, kv_heads = 1, mlp_width = 0;
  ops::AttentionMask mask = ops::AttentionMask::none;
  std::optional<double> rotary_base = {};  ///< none: no rotary positions
  MlpKind mlp = MlpKind::gelu;
  ops::Gelu gelu = ops::Gelu::tanh;
  NormKind norm = NormKind::layer;
  double norm_epsilon = 1e-5;
  ops::MatrixOrder order = ops::MatrixOrder::out_in;
  bool qkv_bias = true, bias = true;
  /// Standard deviation of the initial weights: of the two layers that end a branch, and of the
  /// others.
  double branch_deviation = 0.02, deviation = 0.02;
  double layer_scale = 0;  ///< the initial factor of a branch (LayerScale); 0: none
  double dropout = 0, drop_path = 0;

  std::int64_t head_width() const { return width / heads; }
};

std::unique_ptr<Block> make_attention_block(const AttentionBlockOptions& options);

/// Returns the broken rule between model.width and model.heads. Both are positive.
std::optional<BrokenRule> broken_head_rule(std::int64_t width, std::int64_t heads,
                                           const KeyNotes& notes);
/// Returns the broken rule between model.drop_path and model.layers: stochastic depth needs a
/// second block, because its probability is 0 at the first.
std::optional<BrokenRule> broken_depth_rule(double drop_path, std::int64_t layers,
                                            const KeyNotes& notes);

}  // namespace trireme::model
