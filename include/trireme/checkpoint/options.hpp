#pragma once

#include <optional>
#include <string>

#include "trireme/base/duration.hpp"

namespace trireme::checkpoint {

/// Table [checkpoint].
struct CheckpointOptions {
  Duration every{1, Duration::Unit::epochs};
  int keep = 3;
  std::optional<Duration>
      keep_every;    ///< the first checkpoint at or past each multiple of it is never rotated away
  std::string best;  ///< metric kept as best.h5: "loss", "top1"; empty: none
  bool asynchronous = true;  ///< key async: written by a thread while training goes on
};

}  // namespace trireme::checkpoint
