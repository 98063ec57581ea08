// SPDX-License-Identifier: Apache-2.0
//
// State of the optimizer: gaps of the flat buffers, working weights, the moving average, names of
// slots and restarts. Memory on meta equals a device's memory, and the host waits once per step.
// All devices, with resident and with offloaded state, have the bits of the CPU.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/emulated.hpp"
#include "optimizer_fixture.hpp"

namespace trireme::optim {
namespace {

TEST(Optimizer, GapsOfTheFlatBufferStayZero) {
  OptimizerFixture fixture(options_of("adamw"));
  for (int step = 1; step <= 3; ++step) fixture.step(step, 0.1);
  std::vector<bool> used(static_cast<std::size_t>(fixture.layout.elements()));
  for (const auto& slot : fixture.layout.tensors())
    std::fill_n(used.begin() + slot.offset, slot.elements, true);
  const Values masters = values(fixture.store.flat_master());
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) {
      EXPECT_EQ(masters[i], 0.0);
    }
  }
}

TEST(Optimizer, WorkingWeightsEqualTheRoundedMaster) {
  for (const UpdateRule* used : rules()) {
    OptimizerFixture fixture(options_of(*used), {.compute = DType::bfloat16});
    const auto bytes = [&] { return test::bytes_of(fixture.store.flat_working()); };
    const std::vector<std::byte> before = bytes();
    fixture.step(1, 0.1);
    const std::vector<std::byte> after = bytes();
    EXPECT_NE(after, before);
    fixture.store.refresh_working(fixture.context);
    EXPECT_EQ(after, bytes());
  }
}

/// The average by its definition, in double, from the weights after each applied step.
TEST(Optimizer, AverageFollowsWeightsAndStatistics) {
  for (const UpdateRule* used : rules()) {
    OptimizerOptions options = options_of(*used);
    OptimizerFixture plain(options);
    options.ema = 0.75;
    OptimizerFixture fixture(options);
    fixture.optimizer.start_ema(fixture.context);
    const Tensor &weight = fixture.store.flat_master(), average = fixture.optimizer.ema();
    ASSERT_EQ(average.elements(), weight.elements());
    Values expected = values(weight);
    for (int step = 1; step <= 6; ++step) {
      fixture.fill_gradient(step);
      const bool applied = fixture.optimizer.step(fixture.context, 0.1, step != 4).applied;
      EXPECT_EQ(applied, step != 4);
      if (applied) plain.step(step, 0.1);
      const Values now = values(weight);
      for (std::size_t i = 0; i < expected.size() && applied; ++i)
        expected[i] += 0.25 * (now[i] - expected[i]);
    }
    const Values all = fixture.all();
    EXPECT_EQ(Values(all.begin(), all.end() - average.elements()), plain.all())
        << "the average does not change the weights";
    // At most three roundings to float32 (6e-8) of values of order 1 in each of five updates.
    const Values found = values(average);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 15 * 6e-8) << i;
  }
}

TEST(Optimizer, AverageIsSwappedWithTheWeights) {
  OptimizerOptions options = options_of("adamw");
  OptimizerFixture plain(options);
  plain.optimizer.start_ema(plain.context);
  EXPECT_FALSE(plain.optimizer.ema().defined());
  options.ema = 0.9;
  OptimizerFixture fixture(options);
  fixture.optimizer.start_ema(fixture.context);
  fixture.step(1, 0.1);
  const Values weights = values(fixture.store.flat_master()),
               averages = values(fixture.optimizer.ema());
  EXPECT_NE(weights, averages);
  fixture.optimizer.swap_ema(fixture.context);
  EXPECT_EQ(values(fixture.store.flat_master()), averages);
  EXPECT_EQ(values(fixture.optimizer.ema()), weights);
  EXPECT_EQ(fixture.state.peak_bytes() - plain.state.peak_bytes(), 4 * fixture.layout.elements())
      << "a slot more";
}

TEST(Optimizer, SlotsHaveTheDocumentedNames) {
  const auto names = [](const char* word, double momentum = 0.9) {
    OptimizerOptions options = options_of(word);
    options.momentum = momentum;
    OptimizerFixture fixture(options);
    std::vector<std::string> result;
    for (const parallel::StateEntry& slot : slots_of(fixture.optimizer))
      result.push_back(slot.group);
    return result;
  };
  EXPECT_EQ(names("sgd"), std::vector<std::string>{"optimizer/momentum"});
  EXPECT_EQ(names("sgd", 0), std::vector<std::string>{});
  EXPECT_EQ(names("lars"), std::vector<std::string>{"optimizer/momentum"});
  EXPECT_EQ(names("lars", 0), std::vector<std::string>{"optimizer/momentum"});
  EXPECT_EQ(names("adamw"),
            (std::vector<std::string>{"optimizer/exp_avg", "optimizer/exp_avg_sq"}));
  EXPECT_EQ(names("lamb"), (std::vector<std::string>{"optimizer/exp_avg", "optimizer/exp_avg_sq"}));
}

TEST(Optimizer, MetaMatchesADevicesCountersAndMemory) {
  for (const UpdateRule* used : rules()) {
    for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::emulated}) {
      for (const bool offloaded : {false, true}) {
        OptimizerOptions options = options_of(*used);
        options.ema = 0.9;
        OptimizerFixture real(options, {device, device, DType::bfloat16, offloaded}),
            meta(options, {DeviceKind::meta, device, DType::bfloat16, offloaded});
        for (OptimizerFixture* fixture : {&real, &meta})
          fixture->optimizer.start_ema(fixture->context);
        real.step(1, 0.1);
        EXPECT_TRUE(meta.optimizer.step(meta.context, 0.1, true).applied);
        EXPECT_EQ(meta.optimizer.updates(), 1);
        for (OptimizerFixture* fixture : {&real, &meta})
          fixture->optimizer.swap_ema(fixture->context);
        EXPECT_EQ(meta.memory.peak_bytes(), real.memory.peak_bytes());
        EXPECT_EQ(meta.state.peak_bytes(), real.state.peak_bytes());
        EXPECT_EQ(meta.host.peak_bytes(), real.host.peak_bytes());
        EXPECT_EQ(meta.workspace.peak_bytes(), real.workspace.peak_bytes());
        EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes);
        EXPECT_EQ(meta.context.counters().calls, real.context.counters().calls);
        EXPECT_GT(meta.context.counters().bytes, 0);
      }
    }
  }
}

/// A step copies nothing from pageable host memory, which would block the host, and reads nothing
/// back before its end.
TEST(Optimizer, HostWaitsOncePerStep) {
  for (const UpdateRule* used : rules()) {
    OptimizerOptions options = options_of(*used);
    options.clip_norm = 0.5;
    options.ema = 0.75;
    for (const bool offloaded : {false, true}) {
      OptimizerFixture fixture(options, {.kind = DeviceKind::emulated,
                                         .target = DeviceKind::emulated,
                                         .compute = DType::bfloat16,
                                         .offloaded = offloaded});
      fixture.optimizer.start_ema(fixture.context);
      fixture.step(1, 0.1);  // copies the tables to the device
      for (const bool finite : {true, false, true}) {
        fixture.fill_gradient(2);
        const std::uint64_t before = emulated::host_wait_count();
        EXPECT_EQ(fixture.optimizer.step(fixture.context, 0.05, finite).applied, finite);
        EXPECT_EQ(emulated::host_wait_count() - before, 1) << "away " << offloaded;
        fixture.optimizer.set_updates(fixture.optimizer.updates());
      }
      EXPECT_EQ(fixture.optimizer.updates(), 3);
    }
  }
}

/// After a restart the device continues from the number of updates that the host sets.
TEST(Optimizer, BiasCorrectionResumesFromSetUpdates) {
  OptimizerFixture uninterrupted(options_of("adamw")), resumed(options_of("adamw"));
  for (int step = 1; step <= 3; ++step) uninterrupted.step(step, 0);  // changes the slots only
  resumed.step(1, 0);
  resumed.optimizer.set_updates(3);
  for (std::size_t slot = 0; slot < 2; ++slot)
    assign(slots_of(resumed.optimizer)[slot].flat,
           values(slots_of(uninterrupted.optimizer)[slot].flat));
  assign(resumed.store.flat_master(), values(uninterrupted.store.flat_master()));
  uninterrupted.step(4, 0.1);
  resumed.step(4, 0.1);
  EXPECT_EQ(resumed.all(), uninterrupted.all());
  EXPECT_EQ(resumed.optimizer.updates(), 4);
}

/// Weights whose moments begin later are corrected as if the run began with them.
TEST(Optimizer, BiasCorrectionCountsFromTheStartOfTheMoments) {
  for (const UpdateRule* used : {&rule("adamw"), &rule("lamb")}) {
    for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::emulated}) {
      OptimizerFixture fresh(options_of(*used), {.kind = device, .target = device}),
          thawed(options_of(*used), {.kind = device, .target = device});
      fresh.step(1, 0.1);
      thawed.optimizer.set_updates(1000);
      thawed.optimizer.set_updates_before({{"fc.weight", 1000}, {"conv.weight", 999}});
      thawed.step(1, 0.1);
      const auto weight = [](const OptimizerFixture& fixture, int tensor) {
        return values(fixture.store.master({tensor}));
      };
      EXPECT_EQ(weight(thawed, 3), weight(fresh, 3));
      EXPECT_NE(weight(thawed, 0), weight(fresh, 0)) << "its second update";
      EXPECT_NE(weight(thawed, 4), weight(fresh, 4)) << "update 1001";
      EXPECT_EQ(thawed.optimizer.updates(), 1001);
      // The counts of an earlier checkpoint do not remain.
      thawed.optimizer.set_updates_before({});
      OptimizerFixture late(options_of(*used), {.kind = device, .target = device});
      late.optimizer.set_updates(1001);
      for (std::size_t slot = 0; slot < 2; ++slot)
        assign(slots_of(late.optimizer)[slot].flat, values(slots_of(thawed.optimizer)[slot].flat));
      assign(late.store.flat_master(), values(thawed.store.flat_master()));
      thawed.step(2, 0.1);
      late.step(2, 0.1);
      EXPECT_EQ(thawed.all(), late.all());
    }
  }
}

/// Master weights, slots, averages and norms have equal bits on all devices and with offloaded
/// state; so have the working weights where they are resident.
TEST(Optimizer, AllDevicesMatchTheCpuBitwise) {
  for (const UpdateRule* used : rules()) {
    OptimizerOptions options = options_of(*used);
    options.clip_norm = 0.5;
    options.ema = 0.75;
    for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
      OptimizerFixture expected(
          options, {.kind = DeviceKind::cpu, .target = DeviceKind::cpu, .compute = compute});
      expected.optimizer.start_ema(expected.context);
      std::vector<double> norms;
      for (int step = 1; step <= 3; ++step) norms.push_back(expected.step(step, 0.1).grad_norm);
      for (const bool offloaded : {false, true}) {
        OptimizerFixture found(options, {.kind = DeviceKind::emulated,
                                         .target = DeviceKind::emulated,
                                         .compute = compute,
                                         .offloaded = offloaded});
        found.optimizer.start_ema(found.context);
        for (int step = 1; step <= 3; ++step)
          EXPECT_EQ(found.step(step, 0.1).grad_norm, norms[static_cast<std::size_t>(step) - 1]);
        EXPECT_EQ(found.all(), expected.all()) << "away " << offloaded;
        if (!offloaded && compute != DType::float32) {
          EXPECT_EQ(test::bytes_of(found.store.flat_working()),
                    test::bytes_of(expected.store.flat_working()));
        }
        found.optimizer.swap_ema(found.context);
        found.optimizer.swap_ema(found.context);
        EXPECT_EQ(found.all(), expected.all()) << "after two swaps";
      }
    }
  }
}

}  // namespace
}  // namespace trireme::optim
