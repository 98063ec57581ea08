// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/data/dataset.hpp"

namespace trireme::data {

/// Compares the chosen checksum blocks of a dataset before their first sample of an epoch is used.
///
/// Seed, epoch and block decide whether a block is chosen. A chosen block is compared once in each
/// epoch, by the thread that first needs it; other threads that need it wait. A block that differs
/// is never marked as compared, so every thread that needs one of its samples finds the damage.
/// One bit a block and epoch: 1.25 MB for 10^7 blocks. Thread-safe.
class BlockComparison {
 public:
  /// `dataset` has checksums and outlives this. `share`: probability that a block is chosen.
  BlockComparison(const Dataset& dataset, double share, std::uint64_t seed)
      : dataset_(dataset), share_(share), seed_(seed) {}

  /// Compares the chosen blocks with rows of a sample that were not compared in this epoch yet.
  /// Throws InputError with shard and block if one differs.
  void compare(std::int64_t epoch, std::int64_t sample);
  /// Frees the memory of epochs below `epoch`; no thread may need them anymore.
  void forget_before(std::int64_t epoch);
  /// Forgets all comparisons; no thread may compare meanwhile.
  void reset();

 private:
  using Bits = std::vector<std::atomic<std::uint64_t>>;
  std::shared_ptr<Bits> compared_in(std::int64_t epoch);

  const Dataset& dataset_;
  double share_;
  std::uint64_t seed_;
  std::mutex mutex_;                                        ///< protects `compared_`
  std::map<std::int64_t, std::shared_ptr<Bits>> compared_;  ///< by epoch
  std::array<std::mutex, 64> comparing_;  ///< block n is compared under comparing_[n mod 64]
};

}  // namespace trireme::data
