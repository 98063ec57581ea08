// SPDX-License-Identifier: Apache-2.0
//
// The order of samples in an epoch and its division into steps, all as pure functions.
#include "trireme/data/sampler.hpp"

#include <algorithm>

#include "trireme/base/permutation.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::data {
namespace {

/// Returns the sample at `position` with Shuffle::blocks, in three steps:
/// 1. Permute the positions inside each window of `window` samples.
/// 2. Permute whole blocks of `block` adjacent samples over the epoch. The remainder after the last
///    whole block stays at the end.
/// 3. Rotate all samples by an offset of the epoch. So the samples in the remainder, which
///    `drop_last` skips, differ from epoch to epoch.
///
/// Reads are local: the samples of a window come from a few blocks of adjacent samples.
std::int64_t sample_in_blocks(const SampleOrder& order, std::uint64_t key, std::int64_t position) {
  const std::int64_t window = std::clamp<std::int64_t>(order.window, 1, order.samples);
  const std::int64_t window_index = position / window, window_begin = window_index * window;
  const std::int64_t window_samples = std::min(window, order.samples - window_begin);
  const Permutation window_order(mix64(key ^ static_cast<std::uint64_t>(window_index + 1)),
                                 static_cast<std::uint64_t>(window_samples));
  std::int64_t index =
      window_begin +
      static_cast<std::int64_t>(window_order(static_cast<std::uint64_t>(position - window_begin)));

  const std::int64_t block = std::clamp<std::int64_t>(order.block, 1, order.samples);
  const std::int64_t block_count = order.samples / block;
  if (index < block_count * block) {
    const Permutation block_order(mix64(key), static_cast<std::uint64_t>(block_count));
    index =
        static_cast<std::int64_t>(block_order(static_cast<std::uint64_t>(index / block))) * block +
        index % block;
  }
  const std::int64_t rotation =
      static_cast<std::int64_t>(mix64(~key) % static_cast<std::uint64_t>(order.samples));
  return (index + rotation) % order.samples;
}

std::int64_t permuted(std::uint64_t key, std::int64_t size, std::int64_t position) {
  const Permutation permutation(key, static_cast<std::uint64_t>(size));
  return static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(position)));
}

/// Returns the number, among the samples that are used, of the one at `position`.
std::int64_t number_at_position(const SampleOrder& order, std::int64_t epoch,
                                std::int64_t position) {
  if (order.shuffle == Shuffle::none) return position;
  const std::uint64_t key =
      mix64(random_key(order.seed, "shuffle") ^ mix64(static_cast<std::uint64_t>(epoch) + 1));
  if (order.shuffle == Shuffle::blocks) return sample_in_blocks(order, key, position);
  return permuted(key, order.samples, position);
}

}  // namespace

std::int64_t SampleOrder::sample_at(std::int64_t epoch, std::int64_t position) const {
  TRIREME_EXPECT(position >= 0 && position < samples);
  return index_of(number_at_position(*this, epoch, position));
}

std::int64_t SampleOrder::index_of(std::int64_t number) const {
  TRIREME_EXPECT(subset_of == 0 || samples <= subset_of);
  return subset_of == 0 ? number : permuted(random_key(seed, "subset"), subset_of, number);
}

Cursor EpochBatching::locate(Cursor cursor, std::int64_t row) const {
  TRIREME_EXPECT(row >= 0 && row < global_batch);
  if (drop_last) {
    // After a restart with another global batch, the rest of the epoch may be too short for a step.
    return cursor.position + global_batch > samples ? Cursor{cursor.epoch + 1, row}
                                                    : Cursor{cursor.epoch, cursor.position + row};
  }
  const std::int64_t position = cursor.position + row;
  return {cursor.epoch + position / samples, position % samples};
}

Cursor EpochBatching::advance(Cursor cursor) const {
  if (!drop_last) {
    const std::int64_t position = cursor.position + global_batch;
    return {cursor.epoch + position / samples, position % samples};
  }
  const Cursor first = locate(cursor, 0);
  const Cursor next{first.epoch, first.position + global_batch};
  return next.position + global_batch > samples ? Cursor{next.epoch + 1, 0} : next;
}

}  // namespace trireme::data
