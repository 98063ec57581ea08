// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include "trireme/base/host_energy.hpp"
#include "trireme/device/telemetry.hpp"

namespace trireme::train {

/// Sensor values of a rank. NaN is unknown.
struct SensorValues {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  double cpu_percent = unknown;  ///< processor time of the process / time of the cores it may use
  double gpu_percent = unknown, gpu_celsius = unknown, gpu_watts = unknown, gpu_megahertz = unknown;
  double gpu_throttled = unknown;  ///< 1 if power or temperature lower its clocks
  double gpu_joules = unknown;     ///< Since this start; one rank of each GPU knows it.
  double host_joules = unknown;    ///< Since this start; one rank of each host knows it.
  HostEnergy::Source host_source = HostEnergy::Source::none;
};

/// Reads the sensors of this rank. A thread reads those that take long or that wrap, so that the
/// steps do not wait for them.
class RankSensors {
 public:
  /// `counts_gpu`: this rank is the first of those that share its GPU, and reports its energy.
  /// `host`: given to the first rank of the host, which reports that energy. Does not throw.
  RankSensors(Device device, bool counts_gpu, std::optional<HostEnergy> host);
  ~RankSensors();
  RankSensors(const RankSensors&) = delete;
  RankSensors& operator=(const RankSensors&) = delete;

  /// Reads all sensors now. The thread does it every few seconds.
  void read();
  /// Returns the latest values, and the mean of cpu_percent since the last call.
  SensorValues latest();

 private:
  void run();

  Telemetry telemetry_;
  std::optional<HostEnergy> host_energy_;
  bool counts_gpu_;
  std::optional<double> gpu_joules_before_, gpu_joules_;
  std::mutex reading_;         ///< of the members above
  double wall_ = 0, cpu_ = 0;  ///< at the last call of latest(), in seconds
  std::mutex mutex_;           ///< of the members below
  std::condition_variable ends_;
  SensorValues values_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace trireme::train
