// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// The energy that this host has taken since the object was made, from files of the kernel:
///
/// - rapl: the counters of all processor packages (/sys/class/powercap). Without memory, GPUs and
///   fans. Most systems let only root read them.
/// - hwmon: without rapl, the power meters of the whole host (/sys/class/hwmon), integrated.
///
/// Other programs on the host count too. Not thread-safe.
class HostEnergy {
 public:
  enum class Source : std::uint8_t { none, rapl, hwmon };

  /// `sys`: the folder in the place of /sys, for tests.
  explicit HostEnergy(const std::string& sys = "/sys");

  Source source() const { return source_; }
  /// Reads the files at this time (monotonic_seconds()). Must be called at least once a minute:
  /// counters wrap.
  void read(double now);
  /// Returns the joules up to the last read; none without a source.
  std::optional<double> joules() const;

 private:
  struct Counter {
    std::string file;
    double range = 0;  ///< microjoules after which it wraps
    double last = 0;
  };
  std::vector<Counter> packages_;
  std::vector<std::string> meters_;
  Source source_ = Source::none;
  double joules_ = 0, last_watts_ = 0;
  std::optional<double> last_read_;
};

/// Returns "rapl", "hwmon" or "none".
const char* to_string(HostEnergy::Source source);

}  // namespace trireme
