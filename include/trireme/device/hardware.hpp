#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "trireme/device/device.hpp"

// Which device a process takes, and what it is.

namespace trireme {

/// Index of the device that a process takes of those that it sees: they are dealt out by rank on
/// the node. Where the launcher shows each rank devices of its own (CUDA_VISIBLE_DEVICES), often
/// one alone, that gives each its own too.
constexpr int device_index_of(int local_rank, int visible_devices) {
  return local_rank % visible_devices;
}

/// The CUDA device of this process. Throws Failure, with the reason, where there is none.
Device choose_cuda_device(int local_rank);

/// The same text in two processes where they share one device, another one otherwise, also on other
/// nodes: of CUDA the PCI bus id, the UUID (parts of a GPU have one each) and the host's name. An
/// emulated device is a process's own; the CPU is the host's.
std::string identity_of(Device device);

/// For people and records. What is not known is empty or 0.
struct DeviceDescription {
  Device device;
  std::string name;  ///< "NVIDIA H200"; of the CPU and an emulated device the processor's
  std::string compute_capability;  ///< "9.0"; CUDA only, as the next two
  std::string
      driver;  ///< "580.65.06 (CUDA 13.0)"; the number in brackets is the newest CUDA that it knows
  std::string runtime;            ///< of CUDA, "13.0"
  std::int64_t memory_bytes = 0;  ///< of the device; of the host where the host is the device
  int compute_units =
      0;  ///< streaming multiprocessors; threads of this process where the host is the device
};

/// While a KokkosScope lives. Throws Failure where the device does not answer.
DeviceDescription describe_device(Device device);

/// "cuda:0 NVIDIA H200, compute capability 9.0, 140.0 GiB, driver 580.65.06 (CUDA 13.0),
/// runtime 13.0"; "cpu AMD EPYC 9654, 4 threads, 754.2 GiB".
std::string to_string(const DeviceDescription& description);

/// The name of the first processor in text of the form of /proc/cpuinfo, without runs of blanks;
/// empty where it has none (as on Arm).
std::string processor_name(std::istream& cpu_info);

}  // namespace trireme
