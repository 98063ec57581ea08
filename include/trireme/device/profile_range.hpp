// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace trireme {

/// A named range of host time in a profiler (NVTX, shown by Nsight Systems), from construction to
/// destruction. Ranges nest, separately in each thread. The label is a path such as
/// "trireme/train/forward"; it is read in the constructor. Costs nanoseconds if no profiler is
/// attached, and nothing without CUDA.
class ProfileRange {
 public:
  explicit ProfileRange(const char* label);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace trireme
