// SPDX-License-Identifier: Apache-2.0
//
// Selects the CUDA device of a process, identifies it across ranks, and describes devices for the
// log and environment.json. Called once at the start of a run.

#include "trireme/device/hardware.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <istream>
#include <sstream>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/host.hpp"
#include "trireme/base/text.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/telemetry.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include "cuda.hpp"
#include "trireme/device/launch.hpp"
#endif

namespace trireme {
namespace {

DeviceDescription describe_host(Device device) {
  DeviceDescription description;
  description.device = device;
  description.name = host_processor();
  description.memory_bytes = host_memory_bytes();
  description.compute_units = KokkosScope::threads();
  return description;
}

#if defined(TRIREME_ENABLE_CUDA)

std::string cuda_identity(int index) {
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, index), "querying the device properties");
  std::string uuid;
  for (const char byte : properties.uuid.bytes)
    uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return fmt::format("{} {} on {}", cuda::pci_bus_id(index), uuid, host_name());
}

DeviceDescription describe_cuda(Device device) {
  cudaDeviceProp properties{};
  int driver = 0, runtime = 0;
  cuda::check(cudaGetDeviceProperties(&properties, device.index), "querying the device properties");
  cuda::check(cudaDriverGetVersion(&driver), "querying the driver version");
  cuda::check(cudaRuntimeGetVersion(&runtime), "querying the runtime version");
  DeviceDescription description;
  description.device = device;
  description.name = properties.name;
  description.bus_id = cuda::pci_bus_id(device.index);
  description.compute_capability = fmt::format("{}.{}", properties.major, properties.minor);
  description.driver = "CUDA " + cuda::version_string(driver);
  if (const std::string version = Telemetry(device).driver_version(); !version.empty())
    description.driver = fmt::format("{} ({})", version, description.driver);
  description.runtime = cuda::version_string(runtime);
  description.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  description.compute_units = properties.multiProcessorCount;
  return description;
}

#else

[[noreturn]] void refuse(Device device) {
  throw Failure("no device " + to_string(device) +
                ": this program was built without CUDA (preset cuda-release has it)");
}
std::string cuda_identity(int index) { refuse({DeviceKind::cuda, index}); }
DeviceDescription describe_cuda(Device device) { refuse(device); }

#endif

}  // namespace

Device choose_cuda_device(int local_rank) {
  std::string why;
  const int visible = cuda_device_count(&why);
  ensure(visible > 0, "no CUDA device: {}", why);
  return {DeviceKind::cuda, device_index_of(local_rank, visible)};
}

std::string identity_of(Device device) {
  switch (device.kind) {
    case DeviceKind::cuda: return cuda_identity(device.index);
    case DeviceKind::emulated:
      return fmt::format("{} of process {} on {}", to_string(device), getpid(), host_name());
    case DeviceKind::meta:
    case DeviceKind::cpu: break;
  }
  return fmt::format("{} on {}", to_string(device), host_name());
}

DeviceDescription describe_device(Device device) {
  if (device.kind == DeviceKind::cuda) return describe_cuda(device);
  return describe_host(device);
}

std::optional<std::int64_t> memory_in_use(Device device) {
  std::optional<std::int64_t> bytes;
  if (device.kind == DeviceKind::emulated) {
    bytes = 0;
    for (const std::span<std::byte> block : memory_of(device)) *bytes += std::ssize(block);
  }
#if defined(TRIREME_ENABLE_CUDA)
  if (device.kind == DeviceKind::cuda) {
    std::size_t free = 0, total = 0;
    if (cuda::select_device(device.index) == cudaSuccess &&
        cudaMemGetInfo(&free, &total) == cudaSuccess)
      bytes = static_cast<std::int64_t>(total - free);
    else
      clear_launch_error();
  }
#endif
  return bytes;
}

std::string to_string(const DeviceDescription& description) {
  std::string text = to_string(description.device);
  if (!description.name.empty()) text += " " + description.name;
  if (!description.bus_id.empty()) text += ", PCI bus id " + description.bus_id;
  const bool cuda = description.device.kind == DeviceKind::cuda;
  if (cuda && !description.compute_capability.empty())
    text += ", compute capability " + description.compute_capability;
  if (!cuda && description.compute_units > 0)
    text += ", " + counted(description.compute_units, "thread", "threads");
  if (description.memory_bytes > 0) text += ", " + format_bytes(description.memory_bytes);
  if (!description.driver.empty()) text += ", driver " + description.driver;
  if (!description.runtime.empty()) text += ", runtime " + description.runtime;
  return text;
}

std::string host_processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = processor_name(file);
  utsname system{};
  if (name.empty() && uname(&system) == 0) name = system.machine;
  return name;
}

std::string processor_name(std::istream& cpu_info) {
  for (std::string line; std::getline(cpu_info, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.rfind("model name", 0) != 0) continue;
    std::istringstream words(line.substr(colon + 1));
    std::string name;
    for (std::string word; words >> word;) name += (name.empty() ? "" : " ") + word;
    return name;
  }
  return "";
}

}  // namespace trireme
