// SPDX-License-Identifier: Apache-2.0
//
// Streams, events and copies on the CPU and on the emulated device, and the emulated device itself:
// it must reveal missing waits.

#include "trireme/device/stream.hpp"

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/base/check.hpp"

namespace trireme {
namespace {

constexpr Device cpu{DeviceKind::cpu, 0}, emulated{DeviceKind::emulated, 0};
constexpr std::size_t count = 1500, size = count * sizeof(int);  // more than a page

std::vector<int> numbers(int first) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

int* ints(const Allocation& block) { return reinterpret_cast<int*>(block.data()); }

/// Returns the values on the device at the end of the stream.
std::vector<int> read(const Stream& stream, const void* from) {
  std::vector<int> values(count);
  copy_bytes(stream, values.data(), from, size);
  return values;
}

void write(const Allocation& block, const std::vector<int>& values) {
  std::memcpy(block.data(), values.data(), size);
}
std::vector<int> host_values(const Allocation& block) { return {ints(block), ints(block) + count}; }

/// Runs each test on the CPU and on the emulated device.
class CopyTest : public testing::TestWithParam<DeviceKind> {
 protected:
  Device device_{GetParam(), 0};
  OwnedStream stream_{device_};
};

INSTANTIATE_TEST_SUITE_P(Kinds, CopyTest, testing::Values(DeviceKind::cpu, DeviceKind::emulated),
                         [](const auto& info) { return to_string({info.param, 0}).substr(0, 3); });

TEST_P(CopyTest, GoThereAndBack) {
  const Allocation block(device_, size, "test");
  std::vector<int> values = numbers(7);
  copy_bytes(stream_, block.data(), values.data(), size);
  values.assign(count, 0);  // pageable memory may be reused at once
  EXPECT_EQ(read(stream_, block.data()), numbers(7));
}

TEST_P(CopyTest, GoBetweenBlocksOfTheDevice) {
  const Allocation first(device_, size, "first"), second(device_, size, "second");
  copy_bytes(stream_, first.data(), numbers(3).data(), size);
  copy_bytes(stream_, second.data(), first.data(), size);
  copy_bytes(stream_, first.data(), numbers(5).data(), size);
  EXPECT_EQ(read(stream_, second.data()), numbers(3));
  EXPECT_EQ(read(stream_, first.data()), numbers(5));
}

TEST_P(CopyTest, TakeAPart) {
  const Allocation block(device_, size, "test");
  const std::vector<int> two{41, 43};
  copy_bytes(stream_, block.data() + 5 * sizeof(int), two.data(), 2 * sizeof(int));
  copy_bytes(stream_, block.data(), two.data(), 0);
  std::vector<int> expected(count, 0);
  expected[5] = 41, expected[6] = 43;
  EXPECT_EQ(read(stream_, block.data()), expected);
}

TEST_P(CopyTest, GoThroughPinnedMemoryWithoutTheHost) {
  const Allocation block(device_, size, "block"), other(device_, size, "other"),
      pinned(cpu, size, "pinned", Pages::pinned);
  copy_bytes(stream_, block.data(), numbers(1).data(), size);
  copy_bytes(stream_, pinned.data(), block.data(), size);
  copy_bytes(stream_, other.data(), pinned.data(), size);
  copy_bytes(stream_, block.data(), numbers(2).data(), size);
  copy_bytes(stream_, pinned.data(), block.data(), size);  // overwrites a source of the copy before
  EXPECT_EQ(read(stream_, other.data()), numbers(1));
  synchronize(stream_);
  EXPECT_EQ(host_values(pinned), numbers(2));
}

TEST_P(CopyTest, OfPinnedMemoryToPinnedMemory) {
  const Allocation from(cpu, size, "from", Pages::pinned), to(cpu, size, "to", Pages::pinned);
  write(from, numbers(4));
  copy_bytes(stream_, to.data(), from.data(), size);
  synchronize(stream_);
  EXPECT_EQ(host_values(to), numbers(4));
}

TEST_P(CopyTest, AnEventStandsForTheCopiesBeforeIt) {
  const Allocation block(device_, size, "block"), first(cpu, size, "first", Pages::pinned);
  Event event(device_);
  event.wait();
  EXPECT_TRUE(event.is_done());  // never recorded
  copy_bytes(stream_, block.data(), numbers(5).data(), size);
  copy_bytes(stream_, first.data(), block.data(), size);
  event.record(stream_);
  event.wait();
  EXPECT_TRUE(event.is_done());
  EXPECT_EQ(host_values(first), numbers(5));
}

TEST_P(CopyTest, AnEventOutlivesItsStream) {
  const Allocation block(device_, size, "block"), pinned(cpu, size, "pinned", Pages::pinned);
  Event event(device_);
  {
    const OwnedStream stream(device_);
    copy_bytes(stream, block.data(), numbers(6).data(), size);
    copy_bytes(stream, pinned.data(), block.data(), size);
    event.record(stream);
  }
  const OwnedStream next(device_);
  copy_bytes(next, block.data(), numbers(0).data(), size);
  event.wait();
  EXPECT_EQ(host_values(pinned), numbers(6));
}

TEST_P(CopyTest, MemoryMayGoBeforeTheyAreWaitedFor) {
  const Allocation block(device_, size, "block");
  {
    const Allocation source(device_, size, "source"), pinned(cpu, size, "pinned", Pages::pinned),
        result(cpu, size, "result", Pages::pinned);
    write(pinned, numbers(8));
    copy_bytes(stream_, source.data(), pinned.data(), size);
    copy_bytes(stream_, result.data(), source.data(), size);
    copy_bytes(stream_, block.data(), source.data(), size);
  }
  EXPECT_EQ(read(stream_, block.data()), numbers(8));
}

TEST_P(CopyTest, MemoryMayGoBeforeTheyAreMade) {
  const Allocation block(device_, size, "block");
  {
    const Allocation source(device_, size, "source");
    copy_bytes(stream_, source.data(), numbers(8).data(), size);
    copy_bytes(stream_, block.data(), source.data(), size);
  }
  EXPECT_EQ(read(stream_, block.data()), numbers(8));
}

TEST_P(CopyTest, OwnersMove) {
  const Allocation block(device_, size, "block");
  Event event(device_);
  OwnedStream second(std::move(stream_));
  OwnedStream third;
  third = std::move(second);
  copy_bytes(third, block.data(), numbers(9).data(), size);
  event.record(third);
  Event moved(std::move(event));
  Event assigned;
  assigned = std::move(moved);
  assigned.delay(third);
  assigned.wait();
  moved.wait();  // NOLINT(bugprone-use-after-move): moved-from is an event of the CPU
  EXPECT_TRUE(assigned.is_done());
  EXPECT_EQ(third.get().device, device_);
  EXPECT_EQ(read(third, block.data()), numbers(9));
}

TEST(Emulated, BlocksKnowTheirDevice) {
  const Device other{DeviceKind::emulated, 1};
  Allocation block(other, 5000, "block");
  EXPECT_EQ(device_of(block.data()), other);
  EXPECT_EQ(device_of(block.data() + 4999), other);
  EXPECT_EQ(device_of(block.data() + 5000), cpu);
  EXPECT_EQ(device_of(block.data() - 1), cpu);
  EXPECT_EQ(device_of(nullptr), cpu);
  std::byte* const at = block.data();
  const Allocation moved(std::move(block));
  EXPECT_EQ(device_of(at), other);
  {
    const Allocation end(std::move(const_cast<Allocation&>(moved)));
  }
  EXPECT_EQ(device_of(at), cpu);
  const Allocation pinned(cpu, 100, "pinned", Pages::pinned);
  EXPECT_EQ(device_of(pinned.data()), cpu);
  int local = 0;
  EXPECT_EQ(device_of(&local), cpu);
}

TEST(Emulated, BeginsWithZeros) {
  const OwnedStream stream(emulated);
  const Allocation block(emulated, size, "block");
  EXPECT_EQ(read(stream, block.data()), std::vector<int>(count, 0));
}

TEST(Emulated, NamesTheBlockThatDidNotFit) {
  EXPECT_THROW(Allocation(emulated, std::size_t{1} << 60, "optimizer state"), Failure);
}

TEST(Emulated, KernelsTouchItWhileAccessLives) {
  const OwnedStream stream(emulated);
  const Allocation block(emulated, size, "block");
  {
    const DeviceAccess access(stream);
    ints(block)[0] = 5;
    const Allocation later(emulated, size, "made meanwhile");
    {
      const DeviceAccess nested(stream);
      ints(later)[0] = 6;
    }
    ints(block)[1] = ints(later)[0];
  }
  const std::vector<int> values = read(stream, block.data());
  EXPECT_EQ(values[0], 5);
  EXPECT_EQ(values[1], 6);
}

void touch(const std::byte* address) { *const_cast<volatile std::byte*>(address) = std::byte{1}; }

TEST(EmulatedDeathTest, TheHostMayNotTouchItsMemory) {
  // Kokkos' threads do not exist in a forked child.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const OwnedStream stream(emulated);
  const Allocation block(emulated, size, "block");
  EXPECT_DEATH(touch(block.data()), "");
  // Reading is forbidden too; the memory contains 0.
  EXPECT_DEATH(
      std::_Exit(static_cast<int>(static_cast<const volatile std::byte&>(block.data()[size - 1]))),
      "");
  {
    const DeviceAccess access(stream);
  }
  EXPECT_DEATH(touch(block.data()), "");  // protected again
  copy_bytes(stream, block.data(), numbers(1).data(), size);
  synchronize(stream);
  EXPECT_DEATH(touch(block.data()), "");
}

/// One stream, pinned memory, and a block on the emulated device.
class PinnedCopyTest : public testing::Test {
 protected:
  const OwnedStream stream_{emulated};
  const Allocation block_{emulated, size, "block"};
  const Allocation pinned_{cpu, size, "pinned", Pages::pinned};
};

TEST_F(PinnedCopyTest, PinnedMemoryHasOtherValuesUntilItIsWaitedFor) {
  copy_bytes(stream_, block_.data(), numbers(1).data(), size);
  write(pinned_, numbers(1));
  copy_bytes(stream_, pinned_.data(), block_.data(), size);
  const std::vector<int> meanwhile = host_values(pinned_);
  for (std::size_t i = 0; i < count; ++i) ASSERT_NE(meanwhile[i], static_cast<int>(i) + 1) << i;
  {
    const DeviceAccess kernel(stream_);
  }
  // A kernel is not a wait of the host.
  EXPECT_NE(host_values(pinned_), numbers(1));
  synchronize(stream_);
  EXPECT_EQ(host_values(pinned_), numbers(1));
}

TEST_F(PinnedCopyTest, AnEventWaitsOnlyForWorkBeforeIt) {
  const Allocation second(cpu, size, "second", Pages::pinned);
  Event event(emulated);
  copy_bytes(stream_, block_.data(), numbers(1).data(), size);
  copy_bytes(stream_, pinned_.data(), block_.data(), size);
  event.record(stream_);
  copy_bytes(stream_, second.data(), block_.data(), size);
  event.wait();
  EXPECT_EQ(host_values(pinned_), numbers(1));
  EXPECT_NE(host_values(second), numbers(1));
  event.record(stream_);  // the event moves to the end of the second copy
  event.wait();
  EXPECT_EQ(host_values(second), numbers(1));
}

TEST_F(PinnedCopyTest, APinnedSourceMayNotChangeBeforeItIsWaitedFor) {
  write(pinned_, numbers(1));
  copy_bytes(stream_, block_.data(), pinned_.data(), size);
  ints(pinned_)[count - 1] = -1;
  EXPECT_THROW(synchronize(stream_), Failure);
  EXPECT_NO_THROW(synchronize(stream_));  // reported once
  write(pinned_, numbers(2));
  copy_bytes(stream_, block_.data(), pinned_.data(), size);
  synchronize(stream_);
  write(pinned_, numbers(3));  // allowed after the wait
  EXPECT_EQ(read(stream_, block_.data()), numbers(2));
}

TEST_F(PinnedCopyTest, AnotherStreamsCopyIsNotThereWithoutAnEvent) {
  const OwnedStream other(emulated);
  Event event(emulated);
  write(pinned_, numbers(1));
  copy_bytes(other, block_.data(), pinned_.data(), size);
  EXPECT_EQ(read(stream_, block_.data()), std::vector<int>(count, 0));
  event.record(other);
  event.delay(stream_);
  EXPECT_EQ(read(stream_, block_.data()), numbers(1));
}

TEST_F(PinnedCopyTest, AKernelComesBehindTheEventsOfItsStream) {
  const OwnedStream other(emulated), third(emulated);
  Event event(emulated), next(emulated);
  copy_bytes(other, block_.data(), numbers(1).data(), size);
  event.record(other);
  event.delay(third);
  next.record(third);
  int seen = 0;
  {
    const DeviceAccess kernel(stream_);
    seen = ints(block_)[0];
  }
  EXPECT_EQ(seen, 0);
  next.delay(stream_);
  {
    const DeviceAccess kernel(stream_);
    seen = ints(block_)[0];
  }
  EXPECT_EQ(seen, 1);
}

TEST_F(PinnedCopyTest, AnUnorderedCopyReadsLaterValues) {
  const OwnedStream other(emulated);
  copy_bytes(stream_, block_.data(), numbers(1).data(), size);
  synchronize(stream_);
  copy_bytes(other, pinned_.data(), block_.data(), size);  // the source is read when the copy runs
  copy_bytes(stream_, block_.data(), numbers(2).data(), size);
  {
    const DeviceAccess kernel(stream_);
  }
  synchronize(other);
  EXPECT_EQ(host_values(pinned_), numbers(2));
}

TEST_F(PinnedCopyTest, TheHostWaitsForTheEventsOfAStream) {
  const OwnedStream other(emulated);
  Event event(emulated);
  copy_bytes(other, block_.data(), numbers(1).data(), size);
  copy_bytes(other, pinned_.data(), block_.data(), size);
  event.record(other);
  event.delay(stream_);
  {
    const DeviceAccess kernel(stream_);
  }
  EXPECT_NE(host_values(pinned_), numbers(1));
  synchronize(stream_);
  EXPECT_EQ(host_values(pinned_), numbers(1));
}

TEST_F(PinnedCopyTest, StreamsMayHoldEachOtherBack) {
  const OwnedStream other(emulated);
  Event here(emulated), there(emulated);
  for (int round = 1; round <= 3; ++round) {
    copy_bytes(stream_, block_.data(), numbers(round).data(), size);
    here.record(stream_);
    here.delay(other);
    copy_bytes(other, pinned_.data(), block_.data(), size);
    there.record(other);
    there.delay(stream_);
  }
  synchronize(stream_);
  EXPECT_EQ(host_values(pinned_), numbers(3));
}

TEST_F(PinnedCopyTest, ThreadsMayCopyBesideKernels) {
  constexpr int rounds = 200;
  const OwnedStream other(emulated);
  const Allocation second(emulated, size, "second");
  int wrong = 0;
  std::thread copier([&] {
    for (int round = 0; round < rounds; ++round) {
      const Allocation comes_and_goes(emulated, size, "third");
      copy_bytes(other, second.data(), numbers(round).data(), size);
      copy_bytes(other, comes_and_goes.data(), second.data(), size);
      wrong += read(other, comes_and_goes.data()) != numbers(round);
    }
  });
  for (int round = 0; round < rounds; ++round) {
    const DeviceAccess kernel(stream_);
    ++ints(block_)[0];
  }
  copier.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(read(stream_, block_.data())[0], rounds);
}

std::vector<void*> ended;

TEST(OwnedStream, TellsBeforeItEnds) {
  set_stream_destroy_callback([](void* handle) { ended.push_back(handle); });
  void* handle = nullptr;
  {
    OwnedStream stream(emulated);
    handle = stream.get().handle;
    const OwnedStream moved(std::move(stream));
    const OwnedStream of_the_cpu(cpu);
    EXPECT_TRUE(ended.empty());
  }
  set_stream_destroy_callback(nullptr);
  EXPECT_EQ(ended, std::vector<void*>{handle});
}

TEST(OwnedStream, HasANameOfItsOwn) {
  void* first = nullptr;
  {
    const OwnedStream stream(emulated);
    first = stream.get().handle;
  }
  const OwnedStream second(emulated);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(second.get().handle, first);
}

}  // namespace
}  // namespace trireme
