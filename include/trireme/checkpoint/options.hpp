// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "trireme/base/duration.hpp"

namespace trireme::checkpoint {

/// Table [checkpoint] of the deck (docs/reference/deck.md).
struct CheckpointOptions {
  /// Interval between checkpoints.
  Duration every{1, Duration::Unit::epochs};
  /// Number of newest checkpoints to keep.
  int keep = 3;
  /// The first checkpoint at or past each multiple of this duration is never removed.
  std::optional<Duration> keep_every;
  /// Metric whose best checkpoint is kept as best.h5: "loss", "top1"; empty: none.
  std::string best;
  /// Key `async`: a thread writes the checkpoint while training continues.
  bool asynchronous = true;
};

}  // namespace trireme::checkpoint
