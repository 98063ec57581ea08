// SPDX-License-Identifier: Apache-2.0
//
// Describes the visible CUDA devices for `trireme doctor`, from the CUDA runtime and NVML, and asks
// whether a device has failed.

#include "trireme/device/device_facts.hpp"

#include "trireme/base/check.hpp"
#include "trireme/device/hardware.hpp"
#include "trireme/device/telemetry.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include "cuda.hpp"
#endif

namespace trireme {
namespace {

GpuFacts examine_gpu(Device device) {
  const DeviceDescription description = describe_device(device);
  const Telemetry telemetry(device);
  const DeviceReading reading = telemetry.read();
  const DeviceLimits limits = telemetry.limits();
  return {.name = description.name,
          .bus_id = description.bus_id,
          .compute_capability = description.compute_capability,
          .driver = description.driver,
          .runtime = description.runtime,
          .memory_bytes = description.memory_bytes,
          .clock_megahertz = reading.clock_megahertz,
          .max_clock_megahertz = limits.max_clock_megahertz,
          .power_limit_watts = limits.power_limit_watts,
          .temperature_celsius = reading.temperature_celsius,
          .utilization_percent = reading.utilization_percent};
}

/// Returns whether `device` can access the memory of `peer`.
bool can_access([[maybe_unused]] Device device, [[maybe_unused]] Device peer) {
#if defined(TRIREME_ENABLE_CUDA)
  int possible = 0;
  cuda::check(cudaDeviceCanAccessPeer(&possible, device.index, peer.index),
              "querying the access to a peer");
  return possible != 0;
#else
  return false;
#endif
}

}  // namespace

DeviceFacts examine_devices() {
  DeviceFacts facts;
  facts.built_with_cuda = built_with_cuda();
  if (!facts.built_with_cuda) return facts;
  const int count = cuda_device_count(&facts.no_gpu_reason);
  try {
    for (int index = 0; index < count; ++index)
      facts.gpus.push_back(examine_gpu({DeviceKind::cuda, index}));
    for (int first = 0; first < count; ++first)
      for (int second = first + 1; second < count; ++second) {
        const Device one{DeviceKind::cuda, first}, other{DeviceKind::cuda, second};
        if (!can_access(one, other) || !can_access(other, one))
          facts.pairs_without_peer_access.push_back(to_string(one) + " and " + to_string(other));
      }
  } catch (const Failure& failure) {
    facts.error = failure.what();
  }
  return facts;
}

bool device_has_failed() {
#if defined(TRIREME_ENABLE_CUDA)
  std::size_t free = 0, total = 0;  // a query that every device answers
  return cudaMemGetInfo(&free, &total) != cudaSuccess;
#else
  return false;
#endif
}

}  // namespace trireme
