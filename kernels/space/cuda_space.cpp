// SPDX-License-Identifier: Apache-2.0
//
// Keeps one Kokkos execution space per CUDA stream. The first launch on a stream creates it; the
// end of the stream or of Kokkos removes it. Called by dispatch() (execution_space.hpp).

#include "execution_space.hpp"

#include <list>
#include <mutex>

#include "trireme/device/device_facts.hpp"

namespace trireme::kernels {
namespace {

struct StreamSpace {
  void* handle;
  Kokkos::Cuda space;
};

std::mutex mutex;
// true once the two removal hooks of the current Kokkos initialization are installed
bool hooks_installed = false;

/// The spaces of all streams; a run has about three. A list, so that references stay valid when
/// others are added or removed.
std::list<StreamSpace>& spaces() {
  // Never destroyed: Kokkos ends before main returns, and no space may outlive it.
  static auto* const list = new std::list<StreamSpace>;
  return *list;
}

void remove_space(void* handle) {
  // Kokkos would end the process if it cannot free the memory of the space.
  if (device_has_failed()) return;
  const std::lock_guard lock(mutex);
  spaces().remove_if([&](const StreamSpace& space) { return space.handle == handle; });
}

void clear_spaces() {
  const std::lock_guard lock(mutex);
  spaces().clear();
  hooks_installed = false;
}

}  // namespace

const Kokkos::Cuda& cuda_space(const Stream& stream) {
  const std::lock_guard lock(mutex);
  for (const StreamSpace& space : spaces()) {
    if (space.handle == stream.handle) return space.space;
  }
  if (!hooks_installed) {
    Kokkos::push_finalize_hook(clear_spaces);
    set_stream_destroy_callback(remove_space);
    hooks_installed = true;
  }
  spaces().push_back({stream.handle, Kokkos::Cuda(static_cast<cudaStream_t>(stream.handle))});
  // A new space sets the cache preference again (src/device/kokkos_scope.cpp). It is only a hint.
  if (cudaDeviceSetCacheConfig(cudaFuncCachePreferNone) != cudaSuccess) clear_launch_error();
  return spaces().back().space;
}

}  // namespace trireme::kernels
