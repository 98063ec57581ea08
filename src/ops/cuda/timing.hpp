#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "status.hpp"
#include "trireme/device/launch.hpp"

namespace trireme::ops::cuda {

/// Returns the index of the fastest of `count` variants on a stream. Each is run once, which loads
/// its code, and then timed over three runs; the host waits. work(i) enqueues variant i and returns
/// whether it could be started. Returns 0 if none could.
template <class Work>
std::size_t fastest_of(const Stream& on, std::size_t count, const Work& work) {
  constexpr int runs = 3;
  const DirectLaunches direct(on);
  const auto stream = static_cast<cudaStream_t>(on.handle);
  using EventOwner =
      std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, cudaError_t (*)(cudaEvent_t)>;
  const auto make_event = [] {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "timing algorithms");
    return EventOwner(event, cudaEventDestroy);
  };
  const EventOwner begin = make_event(), end = make_event();
  std::size_t fastest = 0;
  float min_milliseconds = std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < count; ++i) {
    if (!work(i)) continue;
    check(cudaEventRecord(begin.get(), stream), "timing algorithms");
    for (int run = 0; run < runs; ++run) work(i);
    check(cudaEventRecord(end.get(), stream), "timing algorithms");
    check(cudaEventSynchronize(end.get()), "timing algorithms");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "timing algorithms");
    if (milliseconds >= min_milliseconds) continue;
    fastest = i;
    min_milliseconds = milliseconds;
  }
  return fastest;
}

}  // namespace trireme::ops::cuda
