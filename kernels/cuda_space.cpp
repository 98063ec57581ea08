#include "execution_space.hpp"

#include <list>
#include <mutex>

namespace trireme::kernels {
namespace {

struct StreamSpace {
  void* handle;
  Kokkos::Cuda space;
};

std::mutex mutex;
bool hooks_installed = false;  // both are arranged for in this life of Kokkos

/// Few: a run has three streams. References to them hold while others come and go.
std::list<StreamSpace>& spaces() {
  static auto* const list = new std::list<StreamSpace>;  // never destroyed: Kokkos does not outlive
                                                         // main, so neither may a space of it
  return *list;
}

void remove_space(void* handle) {
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
  return spaces().back().space;
}

}  // namespace trireme::kernels
