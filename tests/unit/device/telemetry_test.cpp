// SPDX-License-Identifier: Apache-2.0
#include "trireme/device/telemetry.hpp"

#include <dlfcn.h>

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using testing::HasSubstr;

const std::string library = NVML_STAND_IN;

bool is_empty(const DeviceReading& reading) {
  return !reading.power_watts && !reading.temperature_celsius && !reading.clock_megahertz &&
         !reading.utilization_percent && !reading.energy_joules && !reading.is_throttled;
}

TEST(Telemetry, ReadsTheValuesOfTheLibrary) {
  const Telemetry telemetry("0000:19:00.0", library);
  EXPECT_EQ(telemetry.unavailable_reason(), "");
  EXPECT_EQ(telemetry.driver_version(), "580.65.06");
  const DeviceReading reading = telemetry.read();
  EXPECT_EQ(reading.power_watts, 412.345);
  EXPECT_EQ(reading.temperature_celsius, 61.0);
  EXPECT_EQ(reading.clock_megahertz, 1755.0);
  EXPECT_EQ(reading.utilization_percent, 97.0);
  EXPECT_EQ(reading.energy_joules, 1234.5);
  EXPECT_EQ(reading.is_throttled, true);
  EXPECT_EQ(telemetry.limits().max_clock_megahertz, 1980.0);
  EXPECT_EQ(telemetry.limits().power_limit_watts, 650.5);
}

TEST(Telemetry, APartitionOfAGpuHasNoEnergy) {
  const DeviceReading reading = Telemetry("0000:9B:00.0", library).read();
  EXPECT_EQ(reading.power_watts, 412.345);
  EXPECT_FALSE(reading.energy_joules);
  EXPECT_EQ(reading.is_throttled, false);  // It is idle.
}

TEST(Telemetry, LeavesOutTheValuesThatAGpuLacks) {
  const Telemetry telemetry("0000:5E:00.0", library);
  EXPECT_EQ(telemetry.unavailable_reason(), "");
  EXPECT_EQ(telemetry.driver_version(), "580.65.06");
  EXPECT_TRUE(is_empty(telemetry.read()));
  EXPECT_FALSE(telemetry.limits().max_clock_megahertz || telemetry.limits().power_limit_watts);
}

TEST(Telemetry, IsEmptyWithAReason) {
  const Telemetry none;
  const Telemetry of_the_host(Device{DeviceKind::cpu, 0});
  const Telemetry unknown("0000:00:00.0", library);
  const Telemetry no_library("0000:19:00.0", "/nowhere/libnvidia-ml.so.1");
  const Telemetry another_library("0000:19:00.0", "libm.so.6");
  for (const Telemetry* telemetry :
       {&none, &of_the_host, &unknown, &no_library, &another_library}) {
    EXPECT_TRUE(is_empty(telemetry->read()));
    EXPECT_EQ(telemetry->driver_version(), "");
  }
  EXPECT_EQ(none.unavailable_reason(), "no device");
  EXPECT_EQ(of_the_host.unavailable_reason(), "cpu has no sensors");
  EXPECT_EQ(unknown.unavailable_reason(), library + ": Not Found");
  EXPECT_THAT(no_library.unavailable_reason(), HasSubstr("/nowhere/libnvidia-ml.so.1"));
  EXPECT_EQ(another_library.unavailable_reason(), "libm.so.6 is not an NVML library");
}

TEST(Telemetry, GivesTheLibraryBack) {
  void* const file = dlopen(library.c_str(), RTLD_NOW);
  ASSERT_NE(file, nullptr);
  const auto users = reinterpret_cast<int (*)()>(dlsym(file, "nvml_stand_in_users"));
  ASSERT_NE(users, nullptr);
  const int before = users();
  {
    Telemetry first("0000:19:00.0", library);
    EXPECT_EQ(users(), before + 1);
    const Telemetry moved(std::move(first));
    EXPECT_EQ(users(), before + 1);
    const Telemetry not_found("0000:00:00.0", library);
    EXPECT_EQ(users(), before + 1);
    EXPECT_EQ(moved.read().temperature_celsius, 61.0);
  }
  EXPECT_EQ(users(), before);
  dlclose(file);
}

}  // namespace
}  // namespace trireme
