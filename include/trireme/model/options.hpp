#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::model {

enum class ModelKind : std::uint8_t { resnet, mlp };
enum class ResnetStem : std::uint8_t { imagenet, small };
enum class ResnetNorm : std::uint8_t { batch, group };

/// Table [model] of the deck.
struct ModelOptions {
  ModelKind kind = ModelKind::resnet;
  // resnet
  int depth = 18;
  std::int64_t width = 64;
  ResnetStem stem = ResnetStem::imagenet;
  ResnetNorm norm = ResnetNorm::batch;
  bool zero_init_residual = false;
  // mlp: extents of the hidden layers
  std::vector<std::int64_t> widths;
};

/// Table [loss].
struct LossOptions {
  double label_smoothing = 0;
};

}  // namespace trireme::model
