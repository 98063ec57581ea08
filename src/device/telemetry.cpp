#include "trireme/device/telemetry.hpp"

#include <dlfcn.h>

#include <array>
#include <type_traits>

#if defined(TRIREME_ENABLE_CUDA)
#include "cuda.hpp"
#endif

namespace trireme {

// The part of nvml.h that is used: the header comes with few toolkits. Functions return 0 where all
// is well. https://docs.nvidia.com/deploy/nvml-api
struct Telemetry::Library {
  using Gpu = void*;
  struct Utilisation {
    unsigned gpu, memory;
  };
  static constexpr int sensor_of_the_gpu = 0;         // NVML_TEMPERATURE_GPU
  static constexpr int clock_of_multiprocessors = 1;  // NVML_CLOCK_SM

  void* file = nullptr;
  Gpu gpu = nullptr;
  bool begun = false;

  int (*begin)() = nullptr;
  int (*end)() = nullptr;
  const char* (*sentence)(int) = nullptr;
  int (*find)(const char*, Gpu*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*power_milliwatts)(Gpu, unsigned*) = nullptr;
  int (*temperature)(Gpu, int, unsigned*) = nullptr;
  int (*clock)(Gpu, int, unsigned*) = nullptr;
  int (*utilisation)(Gpu, Utilisation*) = nullptr;

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (begun) end();
    if (file != nullptr) dlclose(file);
  }

  template <class Function>
  bool look_up(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(file, name));
    return function != nullptr;
  }

  /// Empty, or why it cannot be used.
  std::string load(const std::string& path, const std::string& pci_bus_id) {
    file = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) return dlerror();
    if (!look_up(begin, "nvmlInit_v2") || !look_up(end, "nvmlShutdown") ||
        !look_up(sentence, "nvmlErrorString") || !look_up(find, "nvmlDeviceGetHandleByPciBusId_v2"))
      return path + " is no NVML";
    look_up(driver_version, "nvmlSystemGetDriverVersion");
    look_up(power_milliwatts, "nvmlDeviceGetPowerUsage");
    look_up(temperature, "nvmlDeviceGetTemperature");
    look_up(clock, "nvmlDeviceGetClockInfo");
    look_up(utilisation, "nvmlDeviceGetUtilizationRates");
    int error = begin();
    begun = error == 0;
    if (begun) error = find(pci_bus_id.c_str(), &gpu);
    return error == 0 ? "" : path + ": " + sentence(error);
  }
};

namespace {

/// Calls `function` where the library has it; whether all went well.
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
  why_not_ = library_->load(library, pci_bus_id);
  if (!why_not_.empty()) library_.reset();
}

Telemetry::Telemetry(Device device) {
  if (device.kind != DeviceKind::cuda) {
    why_not_ = to_string(device) + " has no sensors";
    return;
  }
#if defined(TRIREME_ENABLE_CUDA)
  char pci_bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(pci_bus_id, sizeof pci_bus_id, device.index) == cudaSuccess)
    *this = Telemetry(pci_bus_id, "libnvidia-ml.so.1");
#endif
}

DeviceReading Telemetry::read() const {
  DeviceReading reading;
  if (library_ == nullptr) return reading;
  const Library& nvml = *library_;
  unsigned value = 0;
  Library::Utilisation utilisation{};
  if (call(nvml.power_milliwatts, nvml.gpu, &value)) reading.power_watts = value / 1000.0;
  if (call(nvml.temperature, nvml.gpu, Library::sensor_of_the_gpu, &value))
    reading.temperature_celsius = value;
  if (call(nvml.clock, nvml.gpu, Library::clock_of_multiprocessors, &value))
    reading.clock_megahertz = value;
  if (call(nvml.utilisation, nvml.gpu, &utilisation)) reading.utilisation_percent = utilisation.gpu;
  return reading;
}

std::string Telemetry::driver_version() const {
  std::array<char, 96> text{};
  if (library_ == nullptr ||
      !call(library_->driver_version, text.data(), static_cast<unsigned>(text.size() - 1)))
    return "";
  return text.data();
}

}  // namespace trireme
