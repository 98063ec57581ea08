// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/device/stream.hpp"

namespace trireme::train {

/// Measures how long the micro-batches of one step are copied to the device: device time on CUDA,
/// host time on an emulated device. Measures nothing on a device that uses host memory, because
/// nothing is copied to it.
class TransferClock {
 public:
  /// `max_copies`: maximum number of copies between two calls of reset().
  TransferClock(Device device, std::int64_t max_copies);
  /// Forgets all copies: another step begins.
  void reset() { num_copies_ = 0; }
  /// Enqueues the start and the end of a copy. Copies do not overlap.
  void start(const Stream& stream);
  void stop(const Stream& stream);
  /// Returns the seconds of all copies since reset(). The device must have executed them.
  double seconds() const;
  /// One copy, in values of monotonic_seconds().
  struct Copy {
    double begin = 0, end = 0;
  };
  /// Returns all copies since reset(). The device must have executed them.
  std::vector<Copy> copies(const DeviceMoment& moment) const;

 private:
  std::vector<Stopwatch> stopwatches_;  ///< Empty on a device that uses host memory.
  std::size_t num_copies_ = 0;
};

}  // namespace trireme::train
