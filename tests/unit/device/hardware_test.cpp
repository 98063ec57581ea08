// SPDX-License-Identifier: Apache-2.0
//
// Selection, identity and description of devices.

#include "trireme/device/hardware.hpp"

#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/host.hpp"
#include "trireme/device/profile_range.hpp"

namespace trireme {
namespace {

constexpr Device cpu{DeviceKind::cpu, 0}, emulated{DeviceKind::emulated, 0};

TEST(ChosenDevice, RanksOfANodeShareItsDevicesEvenly) {
  for (int visible = 1; visible <= 8; ++visible) {
    std::multiset<int> taken;
    for (int local_rank = 0; local_rank < 3 * visible; ++local_rank)
      taken.insert(device_index_of(local_rank, visible));
    for (int index = 0; index < visible; ++index) EXPECT_EQ(taken.count(index), 3u) << visible;
  }
  EXPECT_EQ(device_index_of(5, 8), 5);
  EXPECT_EQ(device_index_of(5, 1), 0);  // the launcher shows each rank only its own device
}

TEST(MemoryInUse, OfAnEmulatedDeviceIsThatOfItsAllocations) {
  const std::int64_t before = memory_in_use(emulated).value();
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{3} << 20}) {
    const Allocation one(emulated, bytes, "test"), of_host(cpu, bytes, "test");
    EXPECT_EQ(memory_in_use(emulated), before + static_cast<std::int64_t>(bytes));
  }
  EXPECT_EQ(memory_in_use(emulated), before);
  EXPECT_FALSE(memory_in_use(cpu));
  EXPECT_FALSE(memory_in_use({DeviceKind::meta, 0}));
}

TEST(ChosenDevice, IsOneThatIsThere) {
  const int count = cuda_device_count();
  if (count > 0) {
    EXPECT_EQ(choose_cuda_device(0), (Device{DeviceKind::cuda, 0}));
    EXPECT_EQ(choose_cuda_device(count), choose_cuda_device(0));
    return;
  }
  try {
    choose_cuda_device(0);
    FAIL() << "a device was chosen where there is none";
  } catch (const Failure& error) {
    std::string why;
    cuda_device_count(&why);
    EXPECT_EQ(std::string(error.what()), "no CUDA device: " + why);
  }
}

TEST(Identity, TellsWhetherTwoShareADevice) {
  EXPECT_EQ(identity_of(cpu), "cpu on " + host_name());
  EXPECT_EQ(identity_of(emulated), identity_of(emulated));
  EXPECT_NE(identity_of(emulated), identity_of({DeviceKind::emulated, 1}));
  EXPECT_NE(identity_of(emulated), identity_of(cpu));
}

TEST(Description, OfTheHost) {
  for (const Device device : {cpu, emulated}) {
    const DeviceDescription description = describe_device(device);
    EXPECT_EQ(description.device, device);
    EXPECT_FALSE(description.name.empty());
    EXPECT_GT(description.memory_bytes, std::int64_t{64} << 20);
    EXPECT_EQ(description.compute_units, KokkosScope::threads());
    EXPECT_TRUE(description.driver.empty() && description.runtime.empty() &&
                description.compute_capability.empty() && description.bus_id.empty());
  }
}

TEST(Description, AsText) {
  DeviceDescription gpu;
  gpu.device = {DeviceKind::cuda, 3};
  gpu.name = "NVIDIA H200";
  gpu.bus_id = "0000:19:00.0";
  gpu.compute_capability = "9.0";
  gpu.driver = "580.65.06 (CUDA 13.0)";
  gpu.runtime = "13.0";
  gpu.memory_bytes = std::int64_t{140} << 30;
  gpu.compute_units = 132;
  EXPECT_EQ(to_string(gpu),
            "cuda:3 NVIDIA H200, PCI bus id 0000:19:00.0, compute capability 9.0, 140.0 GiB, "
            "driver 580.65.06 (CUDA 13.0), runtime 13.0");
  DeviceDescription host;
  host.name = "AMD EPYC 9654";
  host.memory_bytes = std::int64_t{64} << 30;
  host.compute_units = 1;
  EXPECT_EQ(to_string(host), "cpu AMD EPYC 9654, 1 thread, 64.0 GiB");
  EXPECT_EQ(to_string(DeviceDescription{}), "cpu");
}

TEST(ProcessorName, IsThatOfTheFirst) {
  std::istringstream intel(
      "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)   "
      "Platinum 8481C CPU @ 2.70GHz \n"
      "processor\t: 1\nmodel name\t: other\n");
  EXPECT_EQ(processor_name(intel), "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz");
  std::istringstream arm("processor\t: 0\nBogoMIPS\t: 2000.00\nCPU part\t: 0xd4f\n");
  EXPECT_EQ(processor_name(arm), "");
}

TEST(ProfileRange, NestsWithoutAProfiler) {
  const ProfileRange outer("trireme/test/outer");
  {
    const ProfileRange inner("trireme/test/inner");
  }
  EXPECT_NO_THROW(ProfileRange("trireme/test/second"));
}

TEST(ProfileRange, AnObserverSeesRangesThatNameALane) {
  std::vector<std::string> seen;
  const double before = monotonic_seconds();
  double end = before;
  {
    const RangeObserver observer([&](const EndedRange& range) {
      seen.push_back(fmt::format("{} in {}", range.label, range.lane));
      EXPECT_LE(before, range.begin_seconds);
      EXPECT_LE(range.begin_seconds, range.end_seconds);
      EXPECT_LE(end, range.end_seconds);  // Inner ranges end first.
      end = range.end_seconds;
    });
    const ProfileRange outer("trireme/test/outer", "lane");
    const ProfileRange hidden("trireme/test/hidden");
    const ProfileRange inner("trireme/test/inner", "other");
  }
  const ProfileRange behind("trireme/test/behind", "lane");
  EXPECT_EQ(seen, (std::vector<std::string>{"trireme/test/inner in other",
                                            "trireme/test/outer in lane"}));
}

}  // namespace
}  // namespace trireme
