// SPDX-License-Identifier: Apache-2.0
//
// Loads NVML at run time and reads power, temperature, clock and utilization of one GPU.
//
// The constructor opens the library, looks up its functions, initializes it and finds the GPU by
// its PCI bus id. Any failure is stored as text and leaves the object empty.
// train/records/recorder.cpp reads the sensors for metrics.jsonl.

#include "trireme/device/telemetry.hpp"

#include <dlfcn.h>

#include <array>
#include <type_traits>

#if defined(TRIREME_ENABLE_CUDA)
#include "cuda.hpp"
#include "trireme/device/launch.hpp"
#endif

namespace trireme {

// The functions of NVML in use, declared here because few CUDA toolkits install nvml.h. They return
// 0 on success. https://docs.nvidia.com/deploy/nvml-api
struct Telemetry::Library {
  using Gpu = void*;
  struct Utilization {
    unsigned gpu, memory;
  };
  static constexpr int gpu_temperature_sensor = 0;  // NVML_TEMPERATURE_GPU
  static constexpr int sm_clock = 1;                // NVML_CLOCK_SM
  // nvmlClocksThrottleReason: SwPowerCap, HwSlowdown, SwThermalSlowdown, HwThermalSlowdown,
  // HwPowerBrakeSlowdown.
  static constexpr unsigned long long throttling = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;

  void* file = nullptr;
  Gpu gpu = nullptr;
  bool initialized = false;

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*handle_by_bus_id)(const char*, Gpu*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*power_milliwatts)(Gpu, unsigned*) = nullptr;
  int (*temperature)(Gpu, int, unsigned*) = nullptr;
  int (*clock)(Gpu, int, unsigned*) = nullptr;
  int (*utilization_rates)(Gpu, Utilization*) = nullptr;
  int (*max_clock)(Gpu, int, unsigned*) = nullptr;
  int (*power_limit_milliwatts)(Gpu, unsigned*) = nullptr;
  int (*energy_millijoules)(Gpu, unsigned long long*) = nullptr;
  int (*mig_mode)(Gpu, unsigned*, unsigned*) = nullptr;
  int (*throttle_reasons)(Gpu, unsigned long long*) = nullptr;

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (initialized) shutdown();
    if (file != nullptr) dlclose(file);
  }

  template <class Function>
  bool look_up(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(file, name));
    return function != nullptr;
  }

  /// Loads the library and finds the GPU. Returns an empty text, or why it cannot be used.
  std::string load(const std::string& path, const std::string& pci_bus_id) {
    file = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) return dlerror();
    if (!look_up(init, "nvmlInit_v2") || !look_up(shutdown, "nvmlShutdown") ||
        !look_up(error_string, "nvmlErrorString") ||
        !look_up(handle_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2"))
      return path + " is not an NVML library";
    look_up(driver_version, "nvmlSystemGetDriverVersion");
    look_up(power_milliwatts, "nvmlDeviceGetPowerUsage");
    look_up(temperature, "nvmlDeviceGetTemperature");
    look_up(clock, "nvmlDeviceGetClockInfo");
    look_up(utilization_rates, "nvmlDeviceGetUtilizationRates");
    look_up(max_clock, "nvmlDeviceGetMaxClockInfo");
    look_up(power_limit_milliwatts, "nvmlDeviceGetEnforcedPowerLimit");
    look_up(energy_millijoules, "nvmlDeviceGetTotalEnergyConsumption");
    look_up(mig_mode, "nvmlDeviceGetMigMode");
    look_up(throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    int error = init();
    initialized = error == 0;
    if (initialized) error = handle_by_bus_id(pci_bus_id.c_str(), &gpu);
    return error == 0 ? "" : path + ": " + error_string(error);
  }
};

namespace {

/// Calls `function` if the library has it. Returns whether the call succeeded.
template <class Function, class... Arguments>
bool call(Function function, Arguments... arguments) {
  return function != nullptr && function(arguments...) == 0;
}

}  // namespace

Telemetry::Telemetry() = default;
Telemetry::~Telemetry() = default;
Telemetry::Telemetry(Telemetry&&) noexcept = default;
Telemetry& Telemetry::operator=(Telemetry&&) noexcept = default;

Telemetry::Telemetry(const std::string& pci_bus_id, const std::string& library)
    : library_(std::make_unique<Library>()) {
  unavailable_reason_ = library_->load(library, pci_bus_id);
  if (!unavailable_reason_.empty()) library_.reset();
}

Telemetry::Telemetry(Device device) {
  if (device.kind != DeviceKind::cuda) {
    unavailable_reason_ = to_string(device) + " has no sensors";
    return;
  }
#if defined(TRIREME_ENABLE_CUDA)
  char pci_bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(pci_bus_id, sizeof pci_bus_id, device.index) == cudaSuccess)
    *this = Telemetry(pci_bus_id, "libnvidia-ml.so.1");
  else
    clear_launch_error();
#endif
}

DeviceReading Telemetry::read() const {
  DeviceReading reading;
  if (library_ == nullptr) return reading;
  const Library& nvml = *library_;
  unsigned value = 0;
  Library::Utilization utilization{};
  if (call(nvml.power_milliwatts, nvml.gpu, &value)) reading.power_watts = value / 1000.0;
  if (call(nvml.temperature, nvml.gpu, Library::gpu_temperature_sensor, &value))
    reading.temperature_celsius = value;
  if (call(nvml.clock, nvml.gpu, Library::sm_clock, &value)) reading.clock_megahertz = value;
  if (call(nvml.utilization_rates, nvml.gpu, &utilization))
    reading.utilization_percent = utilization.gpu;
  unsigned mig = 0, pending = 0;
  unsigned long long millijoules = 0, reasons = 0;
  const bool is_partitioned = call(nvml.mig_mode, nvml.gpu, &mig, &pending) && mig == 1;
  if (!is_partitioned && call(nvml.energy_millijoules, nvml.gpu, &millijoules))
    reading.energy_joules = static_cast<double>(millijoules) / 1000;
  if (call(nvml.throttle_reasons, nvml.gpu, &reasons))
    reading.is_throttled = (reasons & Library::throttling) != 0;
  return reading;
}

DeviceLimits Telemetry::limits() const {
  DeviceLimits limits;
  if (library_ == nullptr) return limits;
  unsigned value = 0;
  if (call(library_->max_clock, library_->gpu, Library::sm_clock, &value))
    limits.max_clock_megahertz = value;
  if (call(library_->power_limit_milliwatts, library_->gpu, &value))
    limits.power_limit_watts = value / 1000.0;
  return limits;
}

std::string Telemetry::driver_version() const {
  std::array<char, 96> text{};
  if (library_ == nullptr ||
      !call(library_->driver_version, text.data(), static_cast<unsigned>(text.size() - 1)))
    return "";
  return text.data();
}

}  // namespace trireme
