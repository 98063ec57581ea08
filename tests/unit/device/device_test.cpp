// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "trireme/base/check.hpp"
#include "trireme/device/device.hpp"

namespace trireme {
namespace {

constexpr Device cpu{DeviceKind::cpu, 0}, meta{DeviceKind::meta, 0};

TEST(Device, HasAName) {
  EXPECT_EQ(to_string(cpu), "cpu");
  EXPECT_EQ(to_string(meta), "meta");
  EXPECT_EQ(to_string(Device{DeviceKind::cuda, 3}), "cuda:3");
}

TEST(Allocation, IsAlignedAndWritable) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{4095}, std::size_t{4097}, std::size_t{3} << 20}) {
    const Allocation block(cpu, bytes, "test");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % 4096, 0u);
    EXPECT_EQ(block.bytes(), bytes);
    std::memset(block.data(), 0x5A, bytes);
    EXPECT_EQ(block.data()[bytes - 1], std::byte{0x5A});
  }
}

TEST(Allocation, MetaHasSizeWithoutStorage) {
  const Allocation block(meta, std::size_t{1} << 50, "a petabyte");
  EXPECT_EQ(block.data(), nullptr);
  EXPECT_EQ(block.bytes(), std::size_t{1} << 50);
}

TEST(Allocation, MovesItsMemory) {
  Allocation first(cpu, 100, "first");
  std::byte* const data = first.data();
  Allocation second(std::move(first));
  EXPECT_EQ(second.data(), data);
  Allocation third(cpu, 7, "third");
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.bytes(), 100u);
  EXPECT_EQ(Allocation().data(), nullptr);
}

TEST(Cuda, NoDeviceComesWithAReason) {
  std::string why;
  const int count = cuda_device_count(&why);
  EXPECT_TRUE(count > 0 || !why.empty());
#if !defined(TRIREME_ENABLE_CUDA)
  EXPECT_EQ(count, 0);
  EXPECT_THROW(Allocation(Device{DeviceKind::cuda, 0}, 16, "test"), Failure);
#endif
}

TEST(KokkosScope, HasThreads) { EXPECT_GE(KokkosScope::threads(), 1); }

}  // namespace
}  // namespace trireme
