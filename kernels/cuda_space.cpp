#include "execution_space.hpp"

#include <list>
#include <mutex>

namespace trireme::kernels {
namespace {

struct Kept {
  void* handle;
  Kokkos::Cuda space;
};

std::mutex mutex;
bool drops_at_the_end = false;  // both are arranged for in this life of Kokkos

/// Few: a run has three streams. References to them hold while others come and go.
std::list<Kept>& kept() {
  static auto* const list = new std::list<Kept>;  // never destroyed: Kokkos does not outlive main,
                                                  // so neither may a space of it
  return *list;
}

void drop(void* handle) {
  const std::lock_guard lock(mutex);
  kept().remove_if([&](const Kept& space) { return space.handle == handle; });
}

void drop_all() {
  const std::lock_guard lock(mutex);
  kept().clear();
  drops_at_the_end = false;
}

}  // namespace

const Kokkos::Cuda& cuda_space(const Stream& stream) {
  const std::lock_guard lock(mutex);
  for (const Kept& space : kept()) {
    if (space.handle == stream.handle) return space.space;
  }
  if (!drops_at_the_end) {
    Kokkos::push_finalize_hook(drop_all);
    set_stream_destroy_callback(drop);
    drops_at_the_end = true;
  }
  kept().push_back({stream.handle, Kokkos::Cuda(static_cast<cudaStream_t>(stream.handle))});
  return kept().back().space;
}

}  // namespace trireme::kernels
