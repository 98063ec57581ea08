// SPDX-License-Identifier: Apache-2.0
//
// Reads the sensors of a rank for the supervisor, which gathers them from all ranks in the step
// before a row of metrics. Reads of GPUs take milliseconds and counters of energy wrap within
// minutes: a thread makes them every few seconds, and latest() takes what it has found.
#include "rank_sensors.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include <sys/resource.h>

#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"
#include "trireme/device/device.hpp"

namespace trireme::train {
namespace {

/// Far below the time in which a counter of energy wraps, about a minute at full power.
constexpr std::chrono::seconds read_interval{5};

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

RankSensors::RankSensors(Device device, bool counts_gpu, std::optional<HostEnergy> host)
    : telemetry_(device),
      host_energy_(std::move(host)),
      counts_gpu_(counts_gpu),
      wall_(monotonic_seconds()),
      cpu_(processor_seconds()) {
  read();
  const bool has_host = host_energy_ && host_energy_->source() != HostEnergy::Source::none;
  if (!telemetry_.unavailable_reason().empty() && !has_host) return;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    // No more threads are allowed: the values remain those of now.
  }
}

RankSensors::~RankSensors() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ends_.notify_one();
  thread_.join();
}

void RankSensors::run() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, read_interval, [this] { return is_ending_; })) {
    lock.unlock();
    read();
    lock.lock();
  }
}

void RankSensors::read() {
  const std::lock_guard reading(reading_);
  const DeviceReading gpu = telemetry_.read();
  SensorValues values;
  const auto set = [](double& value, const std::optional<double>& known) {
    if (known) value = *known;
  };
  set(values.gpu_percent, gpu.utilization_percent);
  set(values.gpu_celsius, gpu.temperature_celsius);
  set(values.gpu_watts, gpu.power_watts);
  set(values.gpu_megahertz, gpu.clock_megahertz);
  if (gpu.is_throttled) values.gpu_throttled = *gpu.is_throttled ? 1 : 0;
  if (counts_gpu_ && gpu.energy_joules) {
    if (!gpu_joules_before_) gpu_joules_before_ = gpu.energy_joules;
    gpu_joules_ = *gpu.energy_joules - *gpu_joules_before_;
  }
  set(values.gpu_joules, gpu_joules_);  // also if this read has failed
  if (host_energy_) {
    host_energy_->read(monotonic_seconds());
    set(values.host_joules, host_energy_->joules());
    values.host_source = host_energy_->source();
  }
  const std::lock_guard lock(mutex_);
  values_ = values;
}

SensorValues RankSensors::latest() {
  SensorValues values;
  {
    const std::lock_guard lock(mutex_);
    values = values_;
  }
  // The mask is that of this thread, which OpenMP may have bound to one place.
  const double wall = monotonic_seconds(), cpu = processor_seconds(),
               cores = std::max(available_cores(), KokkosScope::threads());
  if (wall > wall_) values.cpu_percent = 100 * (cpu - cpu_) / ((wall - wall_) * cores);
  wall_ = wall;
  cpu_ = cpu;
  return values;
}

}  // namespace trireme::train
