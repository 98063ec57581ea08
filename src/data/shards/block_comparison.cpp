// SPDX-License-Identifier: Apache-2.0
#include "block_comparison.hpp"

#include "data/images/random_draws.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::data {

void BlockComparison::compare(std::int64_t epoch, std::int64_t sample) {
  const Dataset::ChecksumBlocks blocks = dataset_.checksum_blocks_of(sample);
  const std::uint64_t epoch_key =
      mix64(random_key(seed_, "verify") ^ mix64(static_cast<std::uint64_t>(epoch) + 1));
  const std::uint64_t shard_key = mix64(epoch_key ^ (blocks.shard + 1));
  std::shared_ptr<Bits> compared;
  for (std::int64_t block = blocks.range.first; block < blocks.range.end; ++block) {
    const std::uint64_t random = mix64(shard_key ^ static_cast<std::uint64_t>(block));
    if (unit_of_64_bits(random) >= share_) continue;
    if (!compared) compared = compared_in(epoch);
    const auto number = static_cast<std::size_t>(blocks.number_of_first + block);
    std::atomic<std::uint64_t>& word = (*compared)[number / 64];
    const std::uint64_t bit = std::uint64_t{1} << number % 64;
    if ((word.load() & bit) != 0) continue;
    const std::lock_guard lock(comparing_[number % comparing_.size()]);
    if ((word.load() & bit) != 0) continue;  // another thread has compared it meanwhile
    dataset_.compare_block(blocks.shard, block);
    word |= bit;
  }
}

std::shared_ptr<BlockComparison::Bits> BlockComparison::compared_in(std::int64_t epoch) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Bits>& bits = compared_[epoch];
  if (!bits)
    bits = std::make_shared<Bits>(static_cast<std::size_t>(dataset_.checksum_blocks() + 63) / 64);
  return bits;
}

void BlockComparison::forget_before(std::int64_t epoch) {
  const std::lock_guard lock(mutex_);
  compared_.erase(compared_.begin(), compared_.lower_bound(epoch));
}

void BlockComparison::reset() {
  const std::lock_guard lock(mutex_);
  compared_.clear();
}

}  // namespace trireme::data
