// SPDX-License-Identifier: Apache-2.0
#include "trireme/tensor/arena.hpp"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/device/stream.hpp"

// Arenas on each kind of memory: where their tensors are, and when copies into them take effect.

namespace trireme {
namespace {

constexpr Device cpu{DeviceKind::cpu, 0}, emulated{DeviceKind::emulated, 0};
constexpr std::int64_t elements = 700, bytes = elements * 4;

TEST(ArenaOfPages, CopiesIntoPinnedTensorsAreLate) {
  const OwnedStream stream(emulated);
  Arena device_arena(emulated, "device", 4096), pinned_arena(cpu, "staging", 8192, Pages::pinned),
      ordinary_arena(cpu, "ordinary", 8192);
  const std::vector<float> values(elements, 2.5f);
  const Tensor there = device_arena.allocate(DType::float32, {elements});
  pinned_arena.allocate(DType::float32, {16});
  const Tensor here = pinned_arena.allocate(DType::float32, {elements}),
               ordinary = ordinary_arena.allocate(DType::float32, {elements});
  const auto holds_them = [&](const Tensor& tensor) {
    return std::memcmp(tensor.data, values.data(), bytes) == 0;
  };

  copy_bytes(stream, there.data, values.data(), bytes);
  copy_bytes(stream, here.data, there.data, bytes);
  EXPECT_FALSE(holds_them(here));
  copy_bytes(stream, ordinary.data, there.data, bytes);
  EXPECT_TRUE(holds_them(ordinary));
  synchronize(stream);
  EXPECT_TRUE(holds_them(here));
}

TEST(ArenaOfPages, TensorsLieOnTheDeviceOfTheArena) {
  Arena device_arena(emulated, "device", 4096), pinned_arena(cpu, "staging", 4096, Pages::pinned);
  const Tensor there = device_arena.allocate(DType::float32, {elements}),
               here = pinned_arena.allocate(DType::float32, {elements});
  EXPECT_EQ(there.device, DeviceKind::emulated);
  EXPECT_EQ(device_of(there.data), emulated);
  EXPECT_EQ(device_of(static_cast<const std::byte*>(there.data) + bytes - 1), emulated);
  EXPECT_EQ(here.device, DeviceKind::cpu);
  EXPECT_EQ(device_of(here.data), cpu);
}

TEST(ArenaOfPages, TakesTheBytesThatMetaMeasured) {
  std::int64_t peak = 0;
  for (const Device device : {Device{DeviceKind::meta, 0}, cpu, emulated}) {
    for (const Pages pages : {Pages::pageable, Pages::pinned}) {
      Arena arena(device, "test", peak, pages);
      arena.allocate(DType::float32, {elements});
      arena.allocate(DType::bfloat16, {3});
      if (peak == 0) peak = arena.peak_bytes();
      EXPECT_EQ(arena.peak_bytes(), peak);
      EXPECT_EQ(arena.used_bytes(), peak);
    }
  }
}

}  // namespace
}  // namespace trireme
