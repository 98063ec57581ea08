#pragma once

#include <cstdint>

namespace trireme::data {

enum class Shuffle : std::uint8_t { full, blocks, none };

/// Where training stands in its data: nothing else is needed to go on.
struct Cursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  ///< samples taken in it
  bool operator==(const Cursor&) const = default;
};

/// The order of an epoch: a pure function of (seed, epoch, position), O(1) in time and memory, the
/// same at every layout.
struct SampleOrder {
  std::uint64_t seed = 1;
  std::int64_t samples = 0;
  Shuffle shuffle = Shuffle::full;
  std::int64_t block = 1024, window = 65536;  ///< Shuffle::blocks: runs of `block` samples are
                                              ///< permuted, then samples inside windows

  /// The sample that stands at `position` (< samples) of epoch `epoch`.
  std::int64_t sample_at(std::int64_t epoch, std::int64_t position) const;
};

/// How steps take samples from epochs.
struct EpochBatching {
  std::int64_t samples = 0, global_batch = 0;
  bool drop_last = true;

  /// Samples really taken in an epoch.
  std::int64_t samples_per_epoch() const {
    return drop_last ? samples / global_batch * global_batch : samples;
  }
  /// Epoch and position of row `row` (< global) of the step that starts at `cursor`.
  Cursor locate(Cursor cursor, std::int64_t row) const;
  /// The cursor after the step that starts at `cursor`. An epoch's end is written as the next
  /// epoch's start.
  Cursor advance(Cursor cursor) const;
};

}  // namespace trireme::data
