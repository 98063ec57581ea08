// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the tests of the engine: the fixture for both progress modes on host and device memory,
// the sizes and bounds of requests, and the numbers and bytes that each rank contributes with their
// expected sums. engine_test.cpp instantiates the fixture.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "support/mpi.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/tree.hpp"
#include "trireme/comm/engine/engine.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::comm {

// 1, odd and prime sizes, sizes around min_halving_elements (4096), and one above the eager limit
// of MPI.
inline const std::vector<std::int64_t> sizes{1, 2, 3, 31, 1009, 4095, 4096, 4097, 20011, 300007};

inline const Communicator& world() { return test_environment().world(); }

/// Returns the part of `rank`: normal numbers, for which another order of additions has other bits.
inline std::vector<float> part_of(int rank, std::int64_t count, std::uint64_t seed) {
  std::vector<float> part(static_cast<std::size_t>(count));
  const std::uint64_t key = random_key(seed, "part " + std::to_string(rank));
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = static_cast<float>(normal_at(key, i));
  return part;
}

/// Computes the sum in tree order on this rank alone.
inline std::vector<float> expected_sum(int ranks, std::int64_t count, std::uint64_t seed) {
  std::vector<std::vector<float>> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(part_of(rank, count, seed));
  const bool power_of_two = (ranks & (ranks - 1)) == 0;
  std::vector<float> sum(static_cast<std::size_t>(count)), column(parts.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) column[rank] = parts[rank][i];
    sum[i] = column[0];
    for (std::size_t rank = 1; rank < parts.size(); ++rank) sum[i] += column[rank];
    if (power_of_two) sum[i] = tree_sum(std::span<const float>(column));
  }
  return sum;
}

/// Both progress modes, on memory of the host and of an emulated device.
class EngineFixture : public testing::TestWithParam<std::tuple<Engine::ProgressMode, DeviceKind>> {
 protected:
  static Engine::ProgressMode progress_mode() { return std::get<0>(GetParam()); }
  static bool on_host() { return in_host_memory(std::get<1>(GetParam())); }
  const Stream& stream() const { return stream_; }

  /// Values in the memory of the stream's device.
  template <class T>
  class DeviceArray {
   public:
    DeviceArray(const Stream& stream, const std::vector<T>& values)
        : stream_(stream),
          memory_(stream.device, values.size() * sizeof(T), "test"),
          size_(values.size()) {
      copy_bytes(stream_, memory_.data(), values.data(), memory_.bytes());
    }
    T* data() const { return reinterpret_cast<T*>(memory_.data()); }
    std::int64_t size() const { return static_cast<std::int64_t>(size_); }
    std::span<T> span() const { return {data(), size_}; }
    std::vector<T> values() const {
      std::vector<T> values(size_);
      copy_bytes(stream_, values.data(), memory_.data(), memory_.bytes());
      synchronize(stream_);
      return values;
    }

   private:
    Stream stream_;
    Allocation memory_;
    std::size_t size_;
  };
  template <class T>
  DeviceArray<T> area(const std::vector<T>& values) const {
    return {stream_, values};
  }
  DeviceArray<float> room(std::int64_t count) const {
    return area(std::vector<float>(static_cast<std::size_t>(count)));
  }

 private:
  OwnedStream stream_{Device{std::get<1>(GetParam()), 0}};
};

/// Bounds of parts within `count` elements, one list for each case: even; uneven; empty parts at
/// the start, inside and at the end; everything in one part; and a range that begins and ends
/// inside.
inline std::vector<std::vector<std::int64_t>> bounds_of(int ranks, std::int64_t count) {
  std::vector<std::vector<std::int64_t>> cases;
  const auto add_case = [&](auto&& bound) {
    cases.emplace_back();
    for (int i = 0; i <= ranks; ++i) cases.back().push_back(bound(i));
  };
  add_case([&](int i) { return count * i / ranks; });
  add_case([&](int i) { return count * i * i / (ranks * ranks); });
  add_case([&](int i) {
    // Every second part is empty.
    return i / 2 * 2 == ranks ? count : count * (i / 2) / ranks;
  });
  add_case([&](int i) { return i == ranks ? count : 0; });
  add_case([&](int i) { return i == 0 ? 0 : count; });
  add_case([&](int i) { return count / 3 + count / 3 * i / ranks; });
  return cases;
}

inline std::byte byte_at(std::int64_t i, int seed) {
  return static_cast<std::byte>((i * 31 + i / 256 + seed * 7) & 0xff);
}

inline std::vector<std::byte> bytes_of(std::int64_t count, int seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) bytes[static_cast<std::size_t>(i)] = byte_at(i, seed);
  return bytes;
}

}  // namespace trireme::comm
