#include "trireme/parallel/windowed_buffer.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace trireme::parallel {
namespace {

constexpr Device cpu{DeviceKind::cpu, 0};

struct Bench {
  explicit Bench(bool on_host)
      : layout(list(), 1, DType::float32),
        shard(list(), layout, 0, 1, on_host ? 40 : 0),
        device(cpu, "device", 1 << 14),
        host(cpu, "host", 1 << 14),
        workspace(cpu, "workspace", 1 << 10),
        library(cpu, "library", 1 << 10),
        context(Stream{cpu}, workspace, library),
        buffer(shard, {device, on_host ? &host : nullptr}) {
    for (std::int64_t i = 0; i < buffer.flat().elements(); ++i) buffer.flat().as<float>()[i] = static_cast<float>(i);
  }
  static ParameterList list() {
    ParameterList list;
    list.begin_block(0);
    list.declare({.name = "a", .shape = {13, 7}});
    list.begin_block(1);
    list.declare({.name = "b", .shape = {5, 16}});
    return list;
  }
  bool holds(const Tensor& elements, const Shard::Window& window) const {
    return elements.elements() == window.elements() && std::equal(elements.as<float>(), elements.as<float>() + elements.elements(), buffer.flat().as<float>() + window.begin);
  }
  FlatLayout layout;
  Shard shard;
  Arena device, host, workspace, library;
  ops::Context context;
  WindowedBuffer buffer;
};

TEST(WindowedBuffer, OnTheDeviceAWindowIsAViewAndNothingMoves) {
  Bench bench(false);
  const Shard::Window& all = bench.shard.windows().front();
  EXPECT_EQ(bench.buffer.open(bench.context, all).data, bench.buffer.flat().data);
  bench.buffer.close(bench.context, all);
  EXPECT_EQ(bench.context.counters().calls, 0);
  EXPECT_EQ(bench.host.peak_bytes(), 0);
}

TEST(WindowedBuffer, TheWindowBeforeIsStillThere) {
  Bench bench(true);
  ASSERT_GE(bench.shard.windows().size(), 4u);
  Tensor before = bench.buffer.open(bench.context, bench.shard.windows().front());
  for (std::size_t number = 1; number < bench.shard.windows().size(); ++number) {
    const Shard::Window& window = bench.shard.windows()[number];
    const Tensor now = bench.buffer.open(bench.context, window);
    EXPECT_NE(now.data, before.data);
    EXPECT_TRUE(bench.holds(now, window));
    EXPECT_TRUE(bench.holds(before, bench.shard.windows()[number - 1]));
    before = now;
  }
}

TEST(WindowedBuffer, OnlyWhatIsClosedGoesHome) {
  Bench bench(true);
  const std::vector<float> start(bench.buffer.flat().as<float>(), bench.buffer.flat().as<float>() + bench.buffer.flat().elements());
  for (std::size_t number = 0; number < bench.shard.windows().size(); ++number) {
    const Shard::Window& window = bench.shard.windows()[number];
    const Tensor here = bench.buffer.open(bench.context, window);
    std::fill_n(here.as<float>(), here.elements(), -1.0f);
    if (number % 2 == 0) bench.buffer.close(bench.context, window);
  }
  for (std::size_t number = 0; number < bench.shard.windows().size(); ++number) {
    const Shard::Window& window = bench.shard.windows()[number];
    for (std::int64_t i = window.begin; i < window.end; ++i) EXPECT_EQ(bench.buffer.flat().as<float>()[i], number % 2 == 0 ? -1.0f : start[static_cast<std::size_t>(i)]);
  }
}

}  // namespace
}  // namespace trireme::parallel
