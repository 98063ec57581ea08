// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "trireme/base/expect.hpp"
#include "trireme/base/philox.hpp"

namespace trireme {

/// A keyed permutation of [0, size). Each element costs O(1) time and memory, so every rank
/// computes the sample order of an epoch without a table and without communication.
///
/// The permutation is a balanced Feistel network of eight rounds over the smallest even number of
/// bits that represents `size`. Values outside [0, size) are encrypted again until one falls inside
/// ("cycle walking", Black & Rogaway 2002, section 4). This takes at most four passes on average.
class Permutation {
 public:
  Permutation(std::uint64_t key, std::uint64_t size) : key_(key), size_(size) {
    TRIREME_EXPECT(size > 0);
    while ((std::uint64_t{1} << (2 * half_bits_)) < size && half_bits_ < 31) ++half_bits_;
    mask_ = (std::uint64_t{1} << half_bits_) - 1;
  }

  std::uint64_t size() const { return size_; }

  /// Returns the index at `position` (< size).
  std::uint64_t operator()(std::uint64_t position) const {
    TRIREME_EXPECT(position < size_);
    std::uint64_t value = position;
    do {
      std::uint64_t left = value >> half_bits_, right = value & mask_;
      for (std::uint64_t round = 0; round < 8; ++round) {
        const std::uint64_t next = left ^ (mix64(key_ ^ mix64(right + (round << 40))) & mask_);
        left = right;
        right = next;
      }
      value = (left << half_bits_) | right;
    } while (value >= size_);
    return value;
  }

 private:
  std::uint64_t key_, size_, mask_ = 0;
  unsigned half_bits_ = 1;
};

/// Returns up to `count` different numbers from 0 to `total` - 1 in increasing order: all of them,
/// or one from each of `count` equal parts, at a random place in it. At equal distances they might
/// all be in one column of an image, or at one hour of the day.
inline std::vector<std::int64_t> spread(std::int64_t total, std::int64_t count) {
  count = std::min(total, count);
  std::vector<std::int64_t> places;
  const auto begin_of = [=](std::int64_t part) {
    return part * (total / count) + part * (total % count) / count;
  };
  for (std::int64_t part = 0; part < count; ++part) {
    const auto size = static_cast<std::uint64_t>(begin_of(part + 1) - begin_of(part)),
               place = mix64(static_cast<std::uint64_t>(part) + 1) % size;
    places.push_back(begin_of(part) + static_cast<std::int64_t>(place));
  }
  return places;
}

}  // namespace trireme
