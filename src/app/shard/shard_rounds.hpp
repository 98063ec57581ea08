// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/base/log.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::app {

/// Writes shards in rounds, of which each rank writes one. A round ends with an error on all ranks
/// if one has failed. Collective. `write`: writes a shard.
void write_in_rounds(const comm::Communicator& world, std::int64_t shards,
                     const std::function<void(std::int64_t shard)>& write);

/// Logs now and then how many of its samples a rank has written; the others are as far.
class WritingProgress {
 public:
  /// `out`: the folder. `samples`: those of all shards that this rank may write. `first_of(shard)`:
  /// the first sample of a shard.
  WritingProgress(const comm::Communicator& world, std::int64_t shards,
                  const std::function<std::int64_t(std::int64_t)>& first_of, std::string out,
                  Log& log);
  /// Takes samples as written by a run that was killed.
  void keep(std::int64_t samples) { left_ -= samples; }
  /// Counts one sample that is written.
  void add_written();

 private:
  std::string out_;
  Log& log_;
  std::int64_t done_ = 0, left_ = 0;
  double start_seconds_ = monotonic_seconds(), report_seconds_ = start_seconds_;
};

}  // namespace trireme::app
