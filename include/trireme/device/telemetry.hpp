#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trireme/device/device.hpp"

namespace trireme {

/// What a GPU says of itself at a moment. What it does not say is absent.
struct DeviceReading {
  std::optional<double> power_watts;
  std::optional<double> temperature_celsius;
  std::optional<double> clock_megahertz;      ///< of the streaming multiprocessors
  std::optional<double> utilization_percent;  ///< of the time, with a kernel running
};

/// The sensors of one GPU, by NVIDIA's management library (NVML), which comes with the driver and
/// is loaded at run time. Where it is missing, does not know the GPU or fails, readings are empty:
/// nothing here throws, and no run fails for want of them. A reading costs up to some milliseconds.
class Telemetry {
 public:
  Telemetry();  ///< of nothing
  /// Of other kinds than CUDA there are no sensors.
  explicit Telemetry(Device device);
  /// `library`: a file, looked for as dlopen() does.
  Telemetry(const std::string& pci_bus_id, const std::string& library);
  ~Telemetry();
  Telemetry(Telemetry&&) noexcept;
  Telemetry& operator=(Telemetry&&) noexcept;

  DeviceReading read() const;
  /// "580.65.06"; empty where it is not known.
  std::string driver_version() const;
  /// Why readings are empty; empty itself where they are not.
  const std::string& unavailable_reason() const { return unavailable_reason_; }

 private:
  struct Library;
  std::unique_ptr<Library> library_;  // there: the GPU was found
  std::string unavailable_reason_ = "no device";
};

}  // namespace trireme
