// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "trireme/device/device.hpp"

// Selects the device of a process and describes it.

namespace trireme {

/// Returns the index of the device for a process among the devices it sees: local ranks take
/// devices in turn. This also works if the launcher shows each rank only its own devices
/// (CUDA_VISIBLE_DEVICES).
constexpr int device_index_of(int local_rank, int visible_devices) {
  return local_rank % visible_devices;
}

/// Returns the CUDA device of this process. Throws Failure with the reason if no device is visible.
Device choose_cuda_device(int local_rank);

/// Returns a text that is equal in two processes exactly if they share the device, also across
/// nodes.
/// - cuda: PCI bus id, UUID and host name. Each partition of a GPU (MIG) has its own UUID.
/// - emulated: process id and host name, since such a device belongs to one process.
/// - cpu: host name.
///
/// Throws Failure if a CUDA device does not answer.
std::string identity_of(Device device);

/// Facts about a device for the log and for environment.json. Unknown texts are empty, unknown
/// numbers are 0.
struct DeviceDescription {
  Device device;
  /// "NVIDIA H200"; for the CPU and an emulated device, the name of the processor.
  std::string name;
  std::string bus_id;  ///< "0000:19:00.0": the place of the GPU in its host. CUDA only.
  /// "9.0". CUDA only, like `driver` and `runtime`.
  std::string compute_capability;
  /// "580.65.06 (CUDA 13.0)": the driver's version and the newest CUDA version that it supports.
  std::string driver;
  std::string runtime;  ///< "13.0"
  /// Memory of the GPU; for the CPU and an emulated device, of the host.
  std::int64_t memory_bytes = 0;
  /// Streaming multiprocessors of a GPU; for the CPU and an emulated device, Kokkos threads of this
  /// process.
  int compute_units = 0;
};

/// Queries the device. Requires a live KokkosScope, unless it is a CUDA device. Throws Failure if a
/// CUDA device does not answer.
DeviceDescription describe_device(Device device);

/// Returns the bytes of a device's memory that are in use now. A GPU: by all processes, with the
/// context and the libraries. An emulated device: by allocations. Nothing for the CPU and for meta,
/// and if a GPU does not answer.
std::optional<std::int64_t> memory_in_use(Device device);

/// Returns one line for the log: "cuda:0 NVIDIA H200, PCI bus id 0000:19:00.0, compute capability
/// 9.0, 140.0 GiB, driver 580.65.06 (CUDA 13.0), runtime 13.0" or "cpu AMD EPYC 9654, 4 threads,
/// 754.2 GiB".
std::string to_string(const DeviceDescription& description);

/// Returns the name of the processor of this host, or of its architecture if it has none.
std::string host_processor();

/// Returns the first "model name" of a text in the format of /proc/cpuinfo, with single spaces;
/// empty if there is none (Arm has none).
std::string processor_name(std::istream& cpu_info);

}  // namespace trireme
