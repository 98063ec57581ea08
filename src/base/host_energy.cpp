// SPDX-License-Identifier: Apache-2.0
//
// Reads the energy of this host from files of the kernel.
// https://docs.kernel.org/power/powercap/powercap.html,
// https://docs.kernel.org/hwmon/acpi_power_meter.html
#include "trireme/base/host_energy.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace trireme {
namespace {

namespace fs = std::filesystem;

std::string line_of_file(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

/// Returns the number in a file; none if it cannot be read, as without permission.
std::optional<double> number_in(const fs::path& file) {
  std::ifstream stream(file);
  double number = 0;
  return stream >> number && number >= 0 ? std::optional(number) : std::nullopt;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    paths.push_back(entry->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

HostEnergy::HostEnergy(const std::string& sys) {
  for (const fs::path& zone : entries_of(sys + "/class/powercap")) {
    // Other zones are parts of a package, or the whole system with all of its packages. The
    // interface intel-rapl-mmio has the same packages once more.
    const std::string folder = zone.filename().string();
    if (!line_of_file(zone / "name").starts_with("package-") ||
        folder.starts_with("intel-rapl-mmio"))
      continue;
    const auto now = number_in(zone / "energy_uj"), range = number_in(zone / "max_energy_range_uj");
    if (!now || !range) {
      packages_.clear();  // A part of the packages would be a wrong figure.
      break;
    }
    packages_.push_back({(zone / "energy_uj").string(), *range, *now});
  }
  if (!packages_.empty()) {
    source_ = Source::rapl;
    return;
  }
  for (const fs::path& sensor : entries_of(sys + "/class/hwmon")) {
    if (line_of_file(sensor / "name") != "power_meter") continue;
    for (const char* const name : {"power1_average", "power1_input"})
      if (number_in(sensor / name)) {
        meters_.push_back((sensor / name).string());
        break;
      }
  }
  if (!meters_.empty()) source_ = Source::hwmon;
}

void HostEnergy::read(double now) {
  for (Counter& package : packages_) {
    const std::optional<double> value = number_in(package.file);
    if (!value) continue;
    const double grown = *value - package.last;
    joules_ += (grown >= 0 ? grown : grown + package.range) / 1e6;
    package.last = *value;
  }
  if (source_ != Source::hwmon) return;
  double watts = 0;
  for (const std::string& meter : meters_) watts += number_in(meter).value_or(0) / 1e6;
  if (last_read_) joules_ += (watts + last_watts_) / 2 * (now - *last_read_);
  last_watts_ = watts;
  last_read_ = now;
}

std::optional<double> HostEnergy::joules() const {
  return source_ == Source::none ? std::nullopt : std::optional(joules_);
}

const char* to_string(HostEnergy::Source source) {
  switch (source) {
    case HostEnergy::Source::none: return "none";
    case HostEnergy::Source::rapl: return "rapl";
    case HostEnergy::Source::hwmon: return "hwmon";
  }
  return "none";
}

}  // namespace trireme
