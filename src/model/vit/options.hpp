// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace trireme::model {

/// The row of a sample that its class is read from: the class token, or the mean of the patches.
enum class VitPool : std::uint8_t { token, mean };

/// Keys of [model] for kind = "vit", a vision transformer (Dosovitskiy et al. 2021) in timm's form.
struct VitOptions {
  std::int64_t patch = 16;  ///< rows and columns of pixels of a patch
  std::int64_t layers = 12, heads = 12, width = 768;
  double mlp_ratio = 4;
  VitPool pool = VitPool::token;
  bool qkv_bias = true;
  double layer_scale = 0;  ///< initial factor of each branch (LayerScale); 0: none
  double dropout = 0;
  double drop_path = 0;  ///< stochastic depth: probability at the last block
  bool zero_init_head = false;

  std::int64_t mlp_width() const {
    return static_cast<std::int64_t>(mlp_ratio * static_cast<double>(width));
  }
  /// Returns the rows in front of the patches of a sample: a class token, or none.
  std::int64_t leading_rows() const { return pool == VitPool::token ? 1 : 0; }
};

/// The epsilon of all norms, and the deviation of the initial weights, as in timm.
inline constexpr double vit_norm_epsilon = 1e-6, vit_deviation = 0.02;

}  // namespace trireme::model
