#pragma once

namespace trireme {

/// A named stretch of the host's time in a profiler's picture (NVTX, as Nsight Systems shows it),
/// from construction to destruction; they nest, each thread's own. The name is a label as kernels
/// have it, "trireme/train/forward", read at once. Costs nanoseconds where no profiler looks on;
/// without CUDA it does nothing.
class ProfileRange {
 public:
  explicit ProfileRange(const char* label);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace trireme
