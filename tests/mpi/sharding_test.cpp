// SPDX-License-Identifier: Apache-2.0
//
// Sharding and offload of a whole step (store, reducer, optimizer) at 1 to 4 ranks, on a replica
// without layers:
// - weights and state equal those of a replica that shards nothing, bit by bit in tree order;
// - offloaded state and an emulated device have the same bits;
// - own shards are enough for a restart, and a non-finite step changes nothing.
// See sharding_memory_test.cpp for memory, model_norms_test.cpp for norms over the model.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "toy_fixture.hpp"
#include "trireme/parallel/periodic_average.hpp"

namespace trireme::optim {
namespace {

/// A group with a rule of its own, which has more, as many or fewer slots than the other one.
std::vector<Setting> settings_of_two_rules(ShardKind kind) {
  std::vector<Setting> settings;
  for (const auto& [own, other] : {std::pair(&rule("sgd"), &rule("lamb")),
                                   {&rule("lamb"), &rule("lars")},
                                   {&rule("adamw"), &rule("muon")},
                                   {&rule("muon"), &rule("sgd")}})
    settings.push_back({.kind = kind,
                        .per_rank = 2,
                        .compute = DType::bfloat16,
                        .optimizer = own,
                        .group_rule = other});
  return settings;
}

class Sharding : public testing::TestWithParam<Setting> {};

TEST_P(Sharding, GivesTheWeightsOfAWholeReplica) {
  const Setting setting = GetParam();
  Setting whole_setting = setting;
  whole_setting.kind = ShardKind::none;
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  ToyFixture whole(cpu, world(), engine, whole_setting), sharded(cpu, world(), engine, setting);
  EXPECT_EQ(sharded.working(), whole.working()) << "the initial weights";
  for (int step = 1; step <= 3; ++step) {
    const StepOutcome a = whole.step(step), b = sharded.step(step);
    EXPECT_TRUE(a.applied && b.applied);
    if (setting.deterministic) {
      EXPECT_EQ(a.grad_norm, b.grad_norm);
      EXPECT_EQ(sharded.working(), whole.working()) << "after step " << step;
    } else {
      // A dozen float32 additions of each element, 6e-8 each.
      EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-6 * a.grad_norm);
    }
  }
  std::int64_t wrong = 0;
  sharded.compare(whole, [&](float mine, float other) {
    // Plain sums of up to 12 float32 numbers in other orders, three steps: some 1e-6 of numbers
    // between 1 and 30.
    wrong += setting.deterministic
                 ? std::memcmp(&mine, &other, sizeof mine) != 0
                 : !(std::abs(mine - other) <= 1e-6f * std::max(1.0f, std::abs(other)));
  });
  EXPECT_EQ(wrong, 0) << "elements of masters and slots";
}

std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  for (const ShardKind kind : {ShardKind::optimizer, ShardKind::gradients, ShardKind::parameters}) {
    for (const UpdateRule* optimizer : rules()) {
      for (const bool deterministic : {true, false}) {
        for (const std::int64_t per_rank : {1, 3})
          settings.push_back({kind, deterministic, per_rank, DType::float32, optimizer});
      }
      settings.push_back({kind, true, 2, DType::bfloat16, optimizer});
    }
    for (const Setting& setting : settings_of_two_rules(kind)) settings.push_back(setting);
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Sharding, testing::ValuesIn(all_settings()),
                         [](const auto& info) { return name_of(info.param); });

class Offloading : public testing::TestWithParam<Setting> {};

TEST_P(Offloading, HasTheSameBitsForEveryStateLocation) {
  const Setting setting = GetParam();
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const parallel::Offload& offload : {slots_on_host, masters_on_host, both_on_host}) {
    // One row each, some rows, one bucket.
    for (const std::int64_t window_elements : {1, 50, 1 << 20}) {
      Setting offloaded_setting = setting;
      offloaded_setting.offload = offload;
      offloaded_setting.window_elements = window_elements;
      ToyFixture here(cpu, world(), engine, setting),
          offloaded(cpu, world(), engine, offloaded_setting);
      EXPECT_EQ(offloaded.working(), here.working()) << "the initial weights";
      for (int step = 1; step <= 3; ++step) {
        const StepOutcome a = here.step(step), b = offloaded.step(step);
        EXPECT_TRUE(a.applied && b.applied);
        EXPECT_EQ(a.grad_norm, b.grad_norm);
        EXPECT_EQ(offloaded.working(), here.working()) << "after step " << step;
      }
      const auto same = [](const Tensor& x, const Tensor& y) {
        return x.bytes() == y.bytes() &&
               std::memcmp(x.data, y.data, static_cast<std::size_t>(x.bytes())) == 0;
      };
      EXPECT_TRUE(same(offloaded.store.flat_master(), here.store.flat_master()));
      for (std::size_t slot = 0; slot < test::slots_of(here.optimizer).size(); ++slot) {
        EXPECT_TRUE(same(test::slots_of(offloaded.optimizer)[slot].flat,
                         test::slots_of(here.optimizer)[slot].flat))
            << test::slots_of(here.optimizer)[slot].group;
      }
    }
  }
}

std::vector<Setting> offload_settings() {
  std::vector<Setting> settings;
  for (const ShardKind kind : kinds) {
    for (const UpdateRule* optimizer : rules()) {
      settings.push_back({kind, false, 2, DType::float32, optimizer});
      settings.push_back({kind, true, 3, DType::bfloat16, optimizer});
    }
    for (const Setting& setting : settings_of_two_rules(kind)) settings.push_back(setting);
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Offloading, testing::ValuesIn(offload_settings()),
                         [](const auto& info) { return name_of(info.param); });

class DeviceSharding : public testing::TestWithParam<Setting> {};

TEST_P(DeviceSharding, TheBitsAreTheHosts) {
  for (const parallel::Offload& offload : {on_device, slots_on_host, both_on_host}) {
    Setting setting = GetParam();
    setting.offload = offload;
    comm::Engine engine(comm::Engine::ProgressMode::polled);
    ToyFixture here(cpu, world(), engine, setting),
        there({DeviceKind::emulated, 0}, world(), engine, setting);
    EXPECT_EQ(there.working(), here.working()) << "the initial weights";
    for (int step = 1; step <= 3; ++step) {
      const StepOutcome a = here.step(step), b = there.step(step);
      EXPECT_TRUE(a.applied && b.applied);
      EXPECT_EQ(a.grad_norm, b.grad_norm);
      EXPECT_EQ(there.working(), here.working()) << "after step " << step;
    }
    EXPECT_EQ(there.state(), here.state());
  }
}

std::vector<Setting> device_settings() {
  std::vector<Setting> settings;
  for (const ShardKind kind : kinds) {
    settings.push_back({kind, false, 2, DType::float32, &rule("adamw")});
    settings.push_back({kind, true, 3, DType::bfloat16, &rule("lamb")});
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceSharding, testing::ValuesIn(device_settings()),
                         [](const auto& info) { return name_of(info.param); });

/// Replicas that trained independently, on the host and on a device, with slots in device and in
/// host memory.
TEST(DevicePeriodicAverage, ReplicasAreAveragedToTheHostsBits) {
  for (const parallel::Offload& offload : {on_device, slots_on_host}) {
    Setting setting{ShardKind::none, true, 2, DType::bfloat16, &rule("adamw")};
    comm::Engine engine(comm::Engine::ProgressMode::polled);
    ToyFixture here(cpu, comm::Communicator(), engine, setting);
    setting.offload = offload;
    ToyFixture there({DeviceKind::emulated, 0}, comm::Communicator(), engine, setting);
    std::vector<std::byte> states[2];
    for (ToyFixture* toy : {&here, &there}) {
      toy->first_micro_batch = 2 * world().rank();
      parallel::PeriodicAverage average(toy->store, toy->optimizer.state_buffers(), world(), engine,
                                        {.outer_momentum = 0.5, .deterministic = true}, toy->slots);
      average.anchor(toy->context);
      for (int step = 1; step <= 4; ++step) {
        toy->step(step);
        if (step % 2 == 0) average.average(toy->context);
      }
      std::vector<std::byte>& state = states[toy == &here ? 0 : 1];
      state = toy->state();
      toy->add_bytes(average.velocity(), state);
    }
    EXPECT_EQ(states[0], states[1]);
    EXPECT_EQ(there.working(), here.working());
  }
}

/// Then an update of the whole tensor needs no message.
TEST(ShardedSteps, ATensorOfAMatrixRuleIsOnOneRank) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  ToyFixture toy(
      cpu, world(), engine,
      {.kind = ShardKind::parameters, .optimizer = &rule("adamw"), .group_rule = &rule("muon")});
  int whole = 0, cut = 0;
  for (std::int32_t index = 0; index < static_cast<std::int32_t>(toy.list.entries().size());
       ++index) {
    const parallel::ParameterShard::OwnedRows& part = toy.store.owned().owned_rows({index});
    const std::int64_t rows = part.row_end - part.row_begin,
                       all = toy.list.partition({index}).rows();
    if (toy.list[{index}].atom == parallel::Atom::row) {
      cut += rows > 0 && rows < all ? 1 : 0;
      continue;
    }
    EXPECT_TRUE(rows == 0 || rows == all) << toy.list[{index}].name;
    whole += world().all_reduce(rows == all ? std::int64_t{1} : 0, comm::Reduction::sum) == 1;
  }
  EXPECT_EQ(whole, 2) << "q and k: those of the head are no matrices of hidden layers";
  EXPECT_EQ(world().all_reduce(std::int64_t{cut}, comm::Reduction::sum) > 0, world().size() > 1);
}

TEST(ShardedRestart, OwnShardsAreEnoughToMakeAllWorkingWeights) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    ToyFixture whole(cpu, world(), engine, {ShardKind::none, true, 1, compute});
    whole.step(1);
    for (const ShardKind kind : kinds) {
      for (const parallel::Offload& offload : {on_device, masters_on_host}) {
        ToyFixture fresh(cpu, world(), engine, {kind, true, 1, compute, &rule("sgd"), offload});
        // Sets the master weights, as the restart from a checkpoint does.
        for (std::int32_t index = 0; index < static_cast<std::int32_t>(fresh.list.entries().size());
             ++index) {
          const parallel::ParameterShard::OwnedRows& part = fresh.store.owned().owned_rows({index});
          const Tensor own = fresh.store.master({index});
          const std::int64_t row = fresh.list.partition({index}).row_elements();
          std::copy_n(whole.store.flat_master().as<float>() + whole.layout.tensor({index}).offset +
                          part.row_begin * row,
                      own.elements(), own.as<float>());
        }
        const std::uint64_t version = fresh.store.version();
        fresh.store.refresh_working(fresh.context);
        EXPECT_GT(fresh.store.version(), version);
        EXPECT_EQ(fresh.working(), whole.working()) << kind_names[static_cast<int>(kind)];
      }
    }
  }
}

TEST(ShardedSteps, ANonFiniteStepChangesNothing) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const ShardKind kind : kinds) {
    for (const parallel::Offload& offload : {on_device, both_on_host}) {
      ToyFixture toy(cpu, world(), engine,
                     {kind, true, 1, DType::bfloat16, &rule("lamb"), offload});
      toy.step(1);
      const std::vector<std::byte> before = toy.working();
      // Only the last rank owns the infinite value, and all ranks must detect it. Without sharding
      // all ranks hold it.
      if (kind == ShardKind::none || world().rank() + 1 == world().size()) {
        const parallel::ParameterShard& owned = toy.store.owned();
        const std::int64_t last = owned.windows().back().begin + owned.make_rows().back().offset;
        toy.store.flat_gradient().as<float>()[last] = std::numeric_limits<float>::infinity();
      }
      const StepOutcome outcome = toy.optimizer.step(toy.context, 0.05, true);
      toy.store.start_gather(toy.context);
      EXPECT_FALSE(outcome.applied);
      EXPECT_EQ(toy.working(), before);
      EXPECT_EQ(toy.optimizer.updates(), 1);
    }
  }
}

}  // namespace
}  // namespace trireme::optim
