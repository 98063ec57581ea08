// SPDX-License-Identifier: Apache-2.0
//
// WindowedBuffer on the host and on an emulated device: views, staging buffers in turn, copies
// back. Also DeviceTable and AsyncReadback.

#include "trireme/parallel/windowed_buffer.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/reference.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/parallel/device_table.hpp"

namespace trireme::parallel {
namespace {

using test::assign;
using test::Values;
using test::values;

struct BufferFixture {
  BufferFixture(DeviceKind kind, bool on_host)
      : layout(list(), 1, DType::float32),
        shard(list(), layout, 0, 1, on_host ? 40 : 0),
        device({kind, 0}, "device", 1 << 14),
        host({}, "host", 1 << 14, in_host_memory(kind) ? Pages::pageable : Pages::pinned),
        workspace({kind, 0}, "workspace", 1 << 10),
        library({kind, 0}, "library", 1 << 10),
        context(test::test_stream(kind), workspace, library),
        buffer(shard, {device, on_host ? &host : nullptr}),
        start(static_cast<std::size_t>(buffer.flat().elements())) {
    for (std::size_t i = 0; i < start.size(); ++i) start[i] = static_cast<double>(i);
    assign(buffer.flat(), start);
  }
  static ParameterList list() {
    ParameterList list;
    list.begin_block(0);
    list.declare({.name = "a", .shape = {13, 7}});
    list.begin_block(1);
    list.declare({.name = "b", .shape = {5, 16}});
    return list;
  }
  bool holds(const Tensor& elements, const ParameterShard::Window& window) const {
    return values(elements) == Values(start.begin() + window.begin, start.begin() + window.end);
  }
  Values at_home() const {
    synchronize(context.stream());
    return values(buffer.flat());
  }
  FlatLayout layout;
  ParameterShard shard;
  Arena device, host, workspace, library;
  ops::Context context;
  WindowedBuffer buffer;
  Values start;
};

class WindowedBuffers : public testing::TestWithParam<DeviceKind> {};
INSTANTIATE_TEST_SUITE_P(Devices, WindowedBuffers,
                         testing::Values(DeviceKind::cpu, DeviceKind::emulated),
                         [](const auto& info) {
                           return info.param == DeviceKind::cpu ? "cpu" : "emulated";
                         });

TEST_P(WindowedBuffers, OnTheDeviceAWindowIsAViewAndNothingMoves) {
  BufferFixture bench(GetParam(), false);
  const ParameterShard::Window& all = bench.shard.windows().front();
  EXPECT_EQ(bench.buffer.open(bench.context, all).data, bench.buffer.flat().data);
  bench.buffer.close(bench.context, all);
  EXPECT_EQ(bench.context.counters().calls, 0);
  EXPECT_EQ(bench.host.peak_bytes(), 0);
}

TEST_P(WindowedBuffers, TheWindowBeforeIsStillThere) {
  BufferFixture bench(GetParam(), true);
  ASSERT_GE(bench.shard.windows().size(), 4u);
  Tensor before = bench.buffer.open(bench.context, bench.shard.windows().front());
  for (std::size_t number = 1; number < bench.shard.windows().size(); ++number) {
    const ParameterShard::Window& window = bench.shard.windows()[number];
    const Tensor now = bench.buffer.open(bench.context, window);
    EXPECT_NE(now.data, before.data);
    EXPECT_TRUE(bench.holds(now, window));
    EXPECT_TRUE(bench.holds(before, bench.shard.windows()[number - 1]));
    before = now;
  }
}

TEST_P(WindowedBuffers, OnlyClosedWindowsAreCopiedBack) {
  BufferFixture bench(GetParam(), true);
  Values expected = bench.start;
  for (std::size_t number = 0; number < bench.shard.windows().size(); ++number) {
    const ParameterShard::Window& window = bench.shard.windows()[number];
    const Tensor here = bench.buffer.open(bench.context, window);
    assign(here, Values(static_cast<std::size_t>(here.elements()), -1));
    if (number % 2 == 1) continue;
    bench.buffer.close(bench.context, window);
    std::fill(expected.begin() + window.begin, expected.begin() + window.end, -1.0);
  }
  EXPECT_EQ(bench.at_home(), expected);
}

/// A window that was copied back is read again in stream order, without a wait of the host.
TEST_P(WindowedBuffers, AWindowThatWasCopiedBackIsReadAgain) {
  BufferFixture bench(GetParam(), true);
  Values expected = bench.start;
  for (double& value : expected) value *= 8;
  for (int pass = 0; pass < 3; ++pass) {
    for (const ParameterShard::Window& window : bench.shard.windows()) {
      const Tensor here = bench.buffer.open(bench.context, window);
      ops::add(bench.context, here, here);
      bench.buffer.close(bench.context, window);
    }
  }
  EXPECT_EQ(bench.at_home(), expected);
}

TEST_P(WindowedBuffers, ATableOnADeviceFollowsTheHostsArray) {
  BufferFixture bench(GetParam(), false);
  const bool in_place = in_host_memory(GetParam());
  const Stream& stream = bench.context.stream();
  const std::int64_t before = bench.device.used_bytes();
  std::vector<std::int64_t> host{1, 2, 3};
  DeviceTable<std::int64_t> table(host, bench.device);
  EXPECT_EQ(bench.device.used_bytes() - before, in_place ? 0 : Arena::alignment);
  const auto seen = [&] { return values({table.view(stream), DType::int64, GetParam(), {3}}); };
  EXPECT_EQ(device_of(table.view(stream)), stream.device);
  EXPECT_EQ(table.view(stream) == host.data(), in_place);
  EXPECT_EQ(seen(), (Values{1, 2, 3}));
  host[1] = 5;
  table.mark_changed();
  EXPECT_EQ(seen(), (Values{1, 5, 3}));
}

TEST_P(WindowedBuffers, AReadbackHasTheValuesAtItsEnqueue) {
  BufferFixture bench(GetParam(), false);
  const Stream& stream = bench.context.stream();
  const Tensor value = bench.device.allocate(DType::int64, {1});
  AsyncReadback<std::int64_t> report({GetParam(), 0});
  for (const std::int64_t sent : {5, 7}) {
    test::set_value(value, 0, static_cast<double>(sent));
    report.enqueue(stream, value.as<std::int64_t>());
    test::set_value(value, 0, 9);
    EXPECT_EQ(*report.wait(), sent);
  }
}

TEST_P(WindowedBuffers, TwoReadbacksReturnInOrder) {
  BufferFixture bench(GetParam(), false);
  const Stream& stream = bench.context.stream();
  const Tensor values = bench.device.allocate(DType::int64, {2});
  AsyncReadback<std::int64_t> report({GetParam(), 0}, 2);
  const auto send = [&](double value) {
    for (const std::int64_t place : {0, 1})
      test::set_value(values, place, value + static_cast<double>(place));
    report.enqueue(stream, values.as<std::int64_t>());
  };
  send(10);
  for (std::int64_t before = 10; before < 40; before += 10) {
    send(static_cast<double>(before) + 10);
    const std::int64_t* heard = report.wait();
    EXPECT_EQ(heard[0], before);
    EXPECT_EQ(heard[1], before + 1);
  }
}

}  // namespace
}  // namespace trireme::parallel
