// SPDX-License-Identifier: Apache-2.0
//
// The energy of a host from files in the place of /sys: counters of processors that wrap, and power
// meters.
#include "trireme/base/host_energy.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "support/scratch.hpp"

namespace trireme {
namespace {

class HostEnergyFiles : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = sys + "/class/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  void package(int number, double microjoules) {
    const std::string zone = "powercap/intel-rapl:" + std::to_string(number) + "/";
    write(zone + "name", "package-" + std::to_string(number));
    write(zone + "max_energy_range_uj", "1000000000");
    write(zone + "energy_uj", std::to_string(static_cast<long long>(microjoules)));
  }
  void meter(double watts) {
    write("hwmon/hwmon3/name", "power_meter");
    write("hwmon/hwmon3/power1_average", std::to_string(static_cast<long long>(1e6 * watts)));
  }
  test::ScratchFolder scratch;
  std::string sys = scratch.path();
};

TEST_F(HostEnergyFiles, PackagesAreAddedAndWrap) {
  package(0, 999e6);
  package(1, 100e6);
  // Parts of a package, and the whole system, would count twice.
  write("powercap/intel-rapl:0:0/name", "core");
  write("powercap/intel-rapl:0:0/energy_uj", "5");
  write("powercap/intel-rapl:2/name", "psys");
  write("powercap/intel-rapl:2/energy_uj", "5");
  write("powercap/intel-rapl-mmio:0/name", "package-0");
  write("powercap/intel-rapl-mmio:0/energy_uj", "5");
  HostEnergy energy(sys);
  EXPECT_EQ(energy.source(), HostEnergy::Source::rapl);
  EXPECT_EQ(energy.joules(), 0);
  package(0, 4e6);
  package(1, 130e6);
  energy.read(1);
  EXPECT_DOUBLE_EQ(*energy.joules(), 5 + 30);
  package(0, 14e6);
  energy.read(2);
  EXPECT_DOUBLE_EQ(*energy.joules(), 5 + 30 + 10);
}

TEST_F(HostEnergyFiles, APackageThatCannotBeReadLeavesNoPart) {
  package(0, 1e6);
  package(1, 1e6);
  std::filesystem::remove(sys + "/class/powercap/intel-rapl:1/energy_uj");
  const HostEnergy energy(sys);
  EXPECT_EQ(energy.source(), HostEnergy::Source::none);
  EXPECT_FALSE(energy.joules());
}

TEST_F(HostEnergyFiles, PowerOfAMeterIsIntegrated) {
  write("hwmon/hwmon0/name", "coretemp");
  write("hwmon/hwmon0/power1_input", "99000000");
  meter(100);
  HostEnergy energy(sys);
  EXPECT_EQ(energy.source(), HostEnergy::Source::hwmon);
  energy.read(10);
  EXPECT_EQ(energy.joules(), 0);
  meter(300);
  energy.read(20);
  EXPECT_DOUBLE_EQ(*energy.joules(), 2000);
}

TEST_F(HostEnergyFiles, WithoutFilesThereIsNone) {
  HostEnergy energy(sys);
  energy.read(1);
  EXPECT_EQ(energy.source(), HostEnergy::Source::none);
  EXPECT_FALSE(energy.joules());
}

}  // namespace
}  // namespace trireme
