// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include <cudnn.h>

#include "trireme/device/device.hpp"

namespace trireme::ops::cuda {

/// Threads that build cuDNN plans beside the calling thread, each with a cuDNN handle of its own:
/// threads may not share a handle. cuDNN compiles the kernels of some plans while it builds them,
/// which may take a core a second for each.
///
/// The handles live as long as this object, which must outlive the plans. Each plan runs on any
/// handle of the device.
class PlanBuilders {
 public:
  /// `threads`: at most so many work at a time, with the calling thread. `device` must be the
  /// calling thread's. Made before a run has work on the device, which the library may wait for.
  PlanBuilders(Device device, int threads);
  ~PlanBuilders();
  PlanBuilders(const PlanBuilders&) = delete;
  PlanBuilders& operator=(const PlanBuilders&) = delete;

  /// Returns the default number of threads: the cores of this process, at most 8.
  static int default_threads();

  /// Calls work(handle) in the calling thread with `handle`, and at the same time in the other
  /// threads with theirs. Without `handle` they have none either. A thread that cannot be started,
  /// or has no handle, is left out. Returns when all calls have returned; throws the first
  /// exception of one.
  void run(cudnnHandle_t handle, const std::function<void(cudnnHandle_t)>& work);

 private:
  Device device_;
  std::vector<cudnnHandle_t> handles_;  ///< of the other threads; null: could not be made
};

}  // namespace trireme::ops::cuda
