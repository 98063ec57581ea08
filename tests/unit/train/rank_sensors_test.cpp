// SPDX-License-Identifier: Apache-2.0
#include "train/supervision/rank_sensors.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::train {
namespace {

constexpr Device cpu{DeviceKind::cpu, 0};

TEST(RankSensors, UtilizationIsThatSinceTheLastCall) {
  RankSensors sensors(cpu, true, std::nullopt);
  sensors.latest();
  const double end = monotonic_seconds() + 0.05;
  while (monotonic_seconds() < end) {
  }
  const SensorValues values = sensors.latest();
  EXPECT_GT(values.cpu_percent, 0);
  EXPECT_LE(values.cpu_percent, 150);  // Clocks of processors are coarse.
  EXPECT_TRUE(std::isnan(values.gpu_celsius));
  EXPECT_TRUE(std::isnan(values.host_joules));
}

TEST(RankSensors, TheFirstRankOfAHostReportsItsEnergy) {
  const test::ScratchFolder sys;
  const std::filesystem::path zone = sys.path() + "/class/powercap/intel-rapl:0";
  std::filesystem::create_directories(zone);
  std::ofstream(zone / "name") << "package-0";
  std::ofstream(zone / "max_energy_range_uj") << 1000000000;
  std::ofstream(zone / "energy_uj") << 5000000;
  RankSensors sensors(cpu, true, HostEnergy(sys.path()));
  EXPECT_EQ(sensors.latest().host_joules, 0);
  std::ofstream(zone / "energy_uj") << 12000000;
  sensors.read();
  EXPECT_DOUBLE_EQ(sensors.latest().host_joules, 7);
  EXPECT_EQ(sensors.latest().host_source, HostEnergy::Source::rapl);
}

}  // namespace
}  // namespace trireme::train
