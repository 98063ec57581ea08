// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Facts about the GPUs that a process sees. `trireme doctor` reports most of them.

namespace trireme {

/// A CUDA device. Empty texts and values without a number are unknown.
struct GpuFacts {
  std::string name, bus_id, compute_capability, driver, runtime;
  std::int64_t memory_bytes = 0;
  std::optional<double> clock_megahertz, max_clock_megahertz, power_limit_watts;
  std::optional<double> temperature_celsius, utilization_percent;
};

struct DeviceFacts {
  bool built_with_cuda = false;
  std::string no_gpu_reason;  ///< why `gpus` is empty; empty if the program needs none
  std::string error;          ///< of a device that does not answer
  std::vector<GpuFacts> gpus;
  /// Pairs of GPUs that cannot read each other's memory, as in "cuda:0 and cuda:1".
  std::vector<std::string> pairs_without_peer_access;
};

/// Describes all visible CUDA devices. Creates no context on a device and changes no setting.
/// Throws nothing: errors are facts.
DeviceFacts examine_devices();

/// Returns whether work on the selected CUDA device has failed, as by an access to wrong memory.
/// Every later call then fails, also one that frees memory. Does not wait. False without CUDA.
bool device_has_failed();

}  // namespace trireme
