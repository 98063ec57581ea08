// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "trireme/base/observer_list.hpp"

namespace trireme {

/// A named range of host time in a profiler (NVTX, shown by Nsight Systems), from construction to
/// destruction. Ranges nest, separately in each thread. Costs nanoseconds if no profiler is
/// attached, and nothing without CUDA.
class ProfileRange {
 public:
  /// `label`: a path such as "trireme/train/forward". `lane`: RangeObservers see the range as one
  /// of this lane, such as "checkpoint"; null: they do not see it. Both are literals.
  explicit ProfileRange(const char* label, const char* lane = nullptr);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  const char *label_, *lane_;
  double begin_seconds_ = 0;
};

/// A ProfileRange that has ended. Times are values of monotonic_seconds().
struct EndedRange {
  std::string_view label, lane;
  double begin_seconds = 0, end_seconds = 0;
};

/// Registers a callback for the ranges with a lane that end during its lifetime. It runs in the
/// thread of the range, in several threads at once.
class RangeObserver {
 public:
  explicit RangeObserver(std::function<void(const EndedRange&)> observer);
  ~RangeObserver();
  RangeObserver(const RangeObserver&) = delete;
  RangeObserver& operator=(const RangeObserver&) = delete;

 private:
  ObserverList<const EndedRange&>::Place place_;
};

}  // namespace trireme
