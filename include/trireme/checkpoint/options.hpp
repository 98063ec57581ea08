#pragma once

#include <string>

#include "trireme/base/duration.hpp"

namespace trireme::checkpoint {

/// Table [checkpoint].
struct CheckpointOptions {
  Duration every{1, Duration::Unit::epochs};
  int keep = 3;
  std::string best;  ///< metric kept as best.h5: "loss", "top1"; empty: none
};

}  // namespace trireme::checkpoint
