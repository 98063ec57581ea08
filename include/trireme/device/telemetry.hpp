// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trireme/device/device.hpp"

namespace trireme {

/// Sensor values of a GPU at one moment. Values that the GPU does not report are absent.
struct DeviceReading {
  std::optional<double> power_watts;
  std::optional<double> temperature_celsius;
  std::optional<double> clock_megahertz;      ///< clock of the streaming multiprocessors
  std::optional<double> utilization_percent;  ///< share of time with a kernel running
  /// Since the driver was loaded. Absent for a partition of a GPU (MIG): the counter is that of the
  /// whole GPU.
  std::optional<double> energy_joules;
  /// Power or temperature keep the clocks below those that were asked for.
  std::optional<bool> is_throttled;
};

/// Limits of a GPU that an administrator may lower. Values that the GPU does not report are absent.
struct DeviceLimits {
  std::optional<double> max_clock_megahertz;  ///< of the streaming multiprocessors
  std::optional<double> power_limit_watts;
};

/// Reads the sensors of one GPU through NVIDIA's management library (NVML), which the driver
/// installs and this class loads at run time. If the library is missing, does not know the GPU or
/// fails, readings are empty. No function throws, so a run never fails because of it. A reading
/// costs up to a few milliseconds.
class Telemetry {
 public:
  /// No device: every reading is empty.
  Telemetry();
  /// Readings are empty for kinds other than CUDA.
  explicit Telemetry(Device device);
  /// `library`: name or path of the library, searched for as by dlopen(). For tests.
  Telemetry(const std::string& pci_bus_id, const std::string& library);
  ~Telemetry();
  Telemetry(Telemetry&&) noexcept;
  Telemetry& operator=(Telemetry&&) noexcept;

  /// Reads all sensors.
  DeviceReading read() const;
  /// Reads the limits.
  DeviceLimits limits() const;
  /// Returns "580.65.06"; empty if unknown.
  std::string driver_version() const;
  /// Returns why readings are empty; empty if they are available.
  const std::string& unavailable_reason() const { return unavailable_reason_; }

 private:
  struct Library;
  std::unique_ptr<Library> library_;  ///< null: no GPU was found
  std::string unavailable_reason_ = "no device";
};

}  // namespace trireme
