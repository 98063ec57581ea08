// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace trireme::data {

/// Order of the samples of an epoch: a permutation of all, a permutation in blocks, or as stored.
enum class Shuffle : std::uint8_t { full, blocks, none };

/// Position of training in its data. A restart needs nothing else to resume at the same sample.
struct Cursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  ///< samples consumed in this epoch
  bool operator==(const Cursor&) const = default;
};

/// The order of samples in each epoch. A pure function of (seed, epoch, position), computed in O(1)
/// time and memory, and the same at every layout.
struct SampleOrder {
  std::uint64_t seed = 1;
  std::int64_t samples = 0;
  Shuffle shuffle = Shuffle::full;
  /// Shuffle::blocks: runs of `block` adjacent samples are permuted over the epoch, then samples
  /// within windows of `window` samples.
  std::int64_t block = 1024, window = 65536;
  /// If above 0, `samples` of this many samples are used: the first ones of a permutation that only
  /// the seed decides.
  std::int64_t subset_of = 0;

  /// Returns the index in the dataset of the sample with this number (0 .. samples - 1).
  std::int64_t index_of(std::int64_t number) const;
  /// Returns the index in the dataset of the sample at `position` (0 .. samples - 1) of an epoch.
  std::int64_t sample_at(std::int64_t epoch, std::int64_t position) const;
};

/// Divides epochs into steps of `global_batch` samples.
///
/// `drop_last`: the remainder of an epoch that does not fill a step is skipped. Otherwise the last
/// step of an epoch continues with the first samples of the next one.
struct EpochBatching {
  std::int64_t samples = 0, global_batch = 0;
  bool drop_last = true;

  /// Returns the samples that are used per epoch.
  std::int64_t samples_per_epoch() const {
    return drop_last ? samples / global_batch * global_batch : samples;
  }
  /// Returns the epoch and position of row `row` (0 .. global - 1) of the step that starts at
  /// `cursor`.
  Cursor locate(Cursor cursor, std::int64_t row) const;
  /// Returns the cursor after the step that starts at `cursor`. The end of an epoch is expressed as
  /// the start of the next one.
  Cursor advance(Cursor cursor) const;
};

}  // namespace trireme::data
