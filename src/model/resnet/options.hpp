// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "model/layers.hpp"

namespace trireme::model {

enum class ResnetStem : std::uint8_t { imagenet, small };

/// Keys of [model] for kind = "resnet", a residual network (He et al. 2016).
struct ResnetOptions {
  int depth = 18;
  std::int64_t width = 64;  ///< channels of the first stage
  ResnetStem stem = ResnetStem::imagenet;
  ImageNormKind norm = ImageNormKind::batch;
  bool zero_init_residual = false;
  double drop_path = 0;  ///< stochastic depth: probability at the last block
};

}  // namespace trireme::model
