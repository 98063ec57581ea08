// SPDX-License-Identifier: Apache-2.0
//
// parallel.sync at 1, 2 and 4 ranks, compared with references that run on one rank:
// - delayed: each sum is applied one step later, at every kind of sharding and in a pipeline;
// - periodic: weights, slots and velocity equal averages computed by hand; all replicas have the
//   same bits;
// - planned memory equals used memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/mpi.hpp"
#include "support/replica.hpp"
#include "support/update_rules.hpp"

namespace trireme::train {
namespace {

using parallel::MeshShape;
using parallel::ShardKind;
using parallel::SyncKind;

const comm::Communicator& world() { return test_environment().world(); }

constexpr double rate = 0.1, ema_decay = 0.75;
constexpr int steps = 5;
constexpr std::int64_t micro_batches = 8;  // of a step over all replicas

struct Layout {
  std::string name;
  MeshShape mesh;
  ShardKind shard = ShardKind::none;
  bool deterministic = false;
  std::int64_t per_rank = micro_batches;  ///< micro-batches of a replica in a step
};

ReplicaOptions options_of(const Layout& layout) {
  ReplicaOptions options = test::small_gpt(3);
  options.optimizer.rule = &optim::rule("sgd");
  options.optimizer.momentum = 0.9;
  options.accumulation = layout.per_rank;
  options.global = layout.per_rank * layout.mesh.data * options.micro;
  options.bucket_bytes = 8192;
  options.shard = layout.shard;
  options.deterministic = layout.deterministic;
  return options;
}

/// Every kind of sharding in both orders, with one and two micro-batches for each replica, and
/// pipelines.
std::vector<Layout> layouts() {
  const int ranks = world().size();
  std::vector<Layout> layouts;
  for (const ShardKind shard :
       {ShardKind::none, ShardKind::optimizer, ShardKind::gradients, ShardKind::parameters}) {
    for (const bool deterministic : {false, true}) {
      for (const std::int64_t per_rank : {1, 2}) {
        layouts.push_back({"shard " + std::to_string(static_cast<int>(shard)) +
                               (deterministic ? " tree " : " plain ") + std::to_string(per_rank),
                           {ranks, 1, 1},
                           shard,
                           deterministic,
                           per_rank});
      }
    }
  }
  if (ranks > 1) layouts.push_back({"pipeline", {ranks / 2, 1, 2}, ShardKind::none, false, 4});
  if (ranks > 2)
    layouts.push_back({"pipeline of shards", {ranks / 2, 1, 2}, ShardKind::parameters, false, 4});
  return layouts;
}

/// Returns options that run the micro-batches of all replicas on one rank.
ReplicaOptions alone(ReplicaOptions options, std::int64_t accumulation) {
  options.sync = SyncKind::step;
  options.shard = ShardKind::none;
  options.accumulation = accumulation;
  options.global = accumulation * options.micro;
  return options;
}

float* floats(const Tensor& flat) { return flat.as<float>(); }
std::vector<float> values(const Tensor& flat) {
  return {floats(flat), floats(flat) + flat.elements()};
}

/// One rank that applies each sum one step late.
struct LateReference {
  explicit LateReference(const ReplicaOptions& options) : fixture(options) {}
  void step(int number, std::int64_t first) {
    fixture.gradients(first);
    const Tensor& gradient = fixture.store().flat_gradient();
    std::vector<float> made = values(gradient);
    if (number > 0) {
      std::copy(kept.begin(), kept.end(), floats(gradient));
      fixture.optimizer().step(fixture.replica.context(), rate, true);
      fixture.store().start_gather(fixture.replica.context());
    }
    kept = std::move(made);
  }
  test::ReplicaFixture fixture;
  std::vector<float> kept;
};

/// Returns the maximum difference between the elements of a flat buffer that this rank owns and the
/// same elements of a buffer that one rank holds alone.
double largest_difference(Replica& replica, const Tensor& flat, Replica& whole,
                          const float* expected) {
  double largest = 0;
  const parallel::ParameterStore &mine = replica.weight_update().store(),
                                 &all = whole.weight_update().store();
  for (std::size_t index = 0; index < mine.list().entries().size(); ++index) {
    const parallel::ParameterList::Entry& entry = mine.list().entries()[index];
    const parallel::ParameterShard::OwnedRows& part =
        mine.owned().owned_rows({static_cast<std::int32_t>(index)});
    const std::int64_t row = entry.partition.row_elements();
    const float* want = expected +
                        all.owned().owned_rows({all.list().find(entry.spec.name)}).offset +
                        part.row_begin * row;
    for (std::int64_t i = 0; i < (part.row_end - part.row_begin) * row; ++i) {
      const double difference = std::abs(double{floats(flat)[part.offset + i]} - double{want[i]});
      largest = std::isfinite(difference) ? std::max(largest, difference) : HUGE_VAL;
    }
  }
  return largest;
}

/// For weights of about 1 after some steps at rate 0.1, with float32 sums in another order: a few
/// units in the last place. One step changes the weights by a thousandth.
double tolerance(const Layout& layout) { return layout.deterministic ? 0 : 2e-6; }

TEST(DelayedSync, AppliesEachSumOneStepLater) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    ReplicaOptions options = options_of(layout);
    const std::int64_t total = layout.per_rank * layout.mesh.data;
    const parallel::Mesh mesh(layout.mesh, world());
    LateReference late(alone(options, total));
    test::ReplicaFixture at_once(alone(options, total));
    options.sync = SyncKind::delayed;
    test::ReplicaFixture fixture(options, 1, mesh);
    for (int step = 0; step < steps; ++step) {
      fixture.step(rate, step * total + mesh.coordinates.data_rank * layout.per_rank);
      late.step(step, step * total);
      at_once.step(rate, step * total);
      EXPECT_EQ(fixture.optimizer().updates(), step);
    }
    Replica& reference = late.fixture.replica;
    EXPECT_LE(largest_difference(fixture.replica, fixture.store().flat_master(), reference,
                                 floats(reference.weight_update().store().flat_master())),
              tolerance(layout));
    EXPECT_GT(largest_difference(fixture.replica, fixture.store().flat_master(), at_once.replica,
                                 floats(at_once.store().flat_master())),
              1e-4);
    fixture.reducer().complete_pending(fixture.replica.context());
    ASSERT_TRUE(fixture.reducer().pending().exists);
    EXPECT_LE(largest_difference(fixture.replica, fixture.reducer().pending_gradient(), reference,
                                 late.kept.data()),
              tolerance(layout));
  }
}

TEST(DelayedSync, CompletingPendingSumsKeepsTheBits) {
  for (const Layout& layout : layouts()) {
    if (!layout.deterministic) continue;
    SCOPED_TRACE(layout.name);
    ReplicaOptions options = options_of(layout);
    options.sync = SyncKind::delayed;
    const parallel::Mesh mesh(layout.mesh, world());
    test::ReplicaFixture straight(options, 1, mesh), completed(options, 1, mesh);
    for (int step = 0; step < steps; ++step) {
      const std::int64_t first = mesh.coordinates.data_rank * layout.per_rank;
      straight.step(rate, first);
      completed.step(rate, first);
      completed.reducer().complete_pending(completed.replica.context());
    }
    EXPECT_EQ(values(straight.store().flat_master()), values(completed.store().flat_master()));
  }
}

TEST(DelayedSync, TheFiniteFlagBelongsToItsSum) {
  ReplicaOptions options = options_of({"data", {world().size(), 1, 1}, ShardKind::optimizer});
  options.sync = SyncKind::delayed;
  const parallel::Mesh mesh({world().size(), 1, 1}, world());
  test::ReplicaFixture fixture(options, 1, mesh);
  Replica& replica = fixture.replica;
  const auto finish = [&](bool finite) {
    replica.weight_update().reducer().begin_step();
    for (const parallel::PipelineAction& action : replica.stage().schedule()) {
      const data::MicroBatch batch = fixture.batch(action.micro_batch);
      if (action.forward)
        replica.stage().forward(action, &batch);
      else
        replica.stage().backward(action);
    }
    return replica.weight_update().reducer().finish(replica.context(), finite);
  };
  EXPECT_FALSE(finish(false).exists);
  EXPECT_FALSE(finish(true).finite);
  EXPECT_TRUE(finish(true).finite);
}

TEST(Sync, PlansEveryByte) {
  for (const SyncKind sync : {SyncKind::delayed, SyncKind::periodic}) {
    for (const Layout& layout : layouts()) {
      if (sync == SyncKind::periodic && layout.shard != ShardKind::none) continue;
      SCOPED_TRACE(layout.name);
      ReplicaOptions options = options_of(layout);
      const parallel::Mesh mesh(layout.mesh, world());
      const MemoryPlan plain =
          Replica::measure(options, mesh.shape, world().rank(), DeviceKind::cpu);
      options.sync = sync;
      options.outer_momentum = sync == SyncKind::periodic ? 0.5 : 0;
      test::ReplicaFixture fixture(options, 1, mesh);
      for (int step = 0; step < 2; ++step) fixture.step(rate);
      if (sync == SyncKind::periodic)
        fixture.replica.weight_update().average()->average(fixture.replica.context());
      fixture.evaluate(fixture.batch(0));
      fixture.engine.quiesce();
      EXPECT_EQ(fixture.replica.peaks(), fixture.plan);
      const parallel::ParameterStore& store = fixture.store();
      const std::int64_t flat_bytes = store.layout().elements() * size_of(DType::float32);
      if (sync == SyncKind::periodic) {
        EXPECT_EQ(fixture.plan.optimizer, plain.optimizer + 2 * flat_bytes);
      } else if (layout.shard == ShardKind::none) {
        EXPECT_EQ(fixture.plan.gradients, plain.gradients + flat_bytes);
      }
    }
  }
}

/// All replicas on this rank, stepped one after the other, and averages computed by hand.
struct ReplicasByHand {
  ReplicasByHand(const ReplicaOptions& options, int count, std::int64_t per_rank) {
    for (int replica = 0; replica < count; ++replica)
      replicas.push_back(std::make_unique<test::ReplicaFixture>(alone(options, per_rank)));
    anchor = ema = values(replicas[0]->store().flat_master());
    velocity.resize(anchor.size());
  }

  void step(std::int64_t first) {
    for (const auto& fixture : replicas) {
      fixture->step(rate, first);
      first += fixture->options.accumulation;
    }
    // The weight average of the mean of all replicas.
    for (std::size_t i = 0; i < ema.size(); ++i) {
      double sum = 0;
      for (const auto& fixture : replicas) sum += floats(fixture->store().flat_master())[i];
      ema[i] += static_cast<float>((1 - ema_decay) *
                                   (sum / static_cast<double>(replicas.size()) - ema[i]));
    }
  }

  /// Averages a power-of-two number of values: adds pairs first, and halving is exact.
  void mean(const std::vector<Tensor>& flats) const {
    for (std::int64_t i = 0; i < flats[0].elements(); ++i) {
      std::vector<float> sums;
      for (const Tensor& flat : flats) sums.push_back(floats(flat)[i]);
      for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
        for (std::size_t pair = 0; pair < sums.size() / 2; ++pair)
          sums[pair] = sums[2 * pair] + sums[2 * pair + 1];
      }
      for (const Tensor& flat : flats) floats(flat)[i] = sums[0] / static_cast<float>(flats.size());
    }
  }

  void average(float outer_momentum) {
    std::vector<Tensor> masters;
    for (const auto& fixture : replicas) masters.push_back(fixture->store().flat_master());
    mean(masters);
    for (std::size_t slot = 0; slot < test::slots_of(replicas[0]->optimizer()).size(); ++slot) {
      std::vector<Tensor> slots;
      for (const auto& fixture : replicas)
        slots.push_back(test::slots_of(fixture->optimizer())[slot].flat);
      mean(slots);
    }
    if (outer_momentum > 0) step_from_anchor(masters, outer_momentum);
    for (const auto& fixture : replicas)
      fixture->store().refresh_working(fixture->replica.context());
  }

  void step_from_anchor(const std::vector<Tensor>& masters, float outer_momentum) {
    const parallel::ParameterStore& store = replicas[0]->store();
    for (std::size_t index = 0; index < store.list().entries().size(); ++index) {
      if (store.list().entries()[index].spec.role == parallel::Role::statistic) continue;
      const parallel::FlatLayout::FlatTensor& slot = store.layout().tensors()[index];
      for (auto i = static_cast<std::size_t>(slot.offset);
           i < static_cast<std::size_t>(slot.offset + slot.elements); ++i) {
        velocity[i] = outer_momentum * velocity[i] + (floats(masters[0])[i] - anchor[i]);
        for (const Tensor& master : masters) floats(master)[i] = anchor[i] + velocity[i];
      }
    }
    anchor = values(masters[0]);
  }

  std::vector<std::unique_ptr<test::ReplicaFixture>> replicas;
  std::vector<float> anchor, velocity, ema;
};

struct Local {
  std::string name;
  ReplicaOptions options;
  MeshShape mesh;
  double tolerance = 0;
};

std::vector<Local> locals() {
  const int ranks = world().size();
  Layout layout{"", {ranks, 1, 1}, ShardKind::none, false, 2};
  ReplicaOptions adamw = options_of(layout);
  adamw.optimizer.rule = &optim::rule("adamw");
  ReplicaOptions images = test::small_resnet();
  images.optimizer.momentum = 0.9;
  images.global = images.micro * ranks;
  std::vector<Local> locals{{"sgd", options_of(layout), layout.mesh},
                            {"adamw", adamw, layout.mesh},
                            {"batch norm", images, layout.mesh}};
  layout.mesh = {ranks / 2, 1, 2};
  // A pipeline adds the gradients of tied tensors in another order.
  if (ranks > 1) locals.push_back({"pipeline", options_of(layout), layout.mesh, 2e-6});
  return locals;
}

/// An outer momentum of 0.5 is exact: the product and the sum together round once in every
/// compilation.
TEST(PeriodicSync, IsTheAverageOfIndependentRuns) {
  for (const Local& local : locals()) {
    for (const double outer_momentum : {0.0, 0.5}) {
      SCOPED_TRACE(local.name + ", outer momentum " + std::to_string(outer_momentum));
      const parallel::Mesh mesh(local.mesh, world());
      const std::int64_t per_rank = local.options.accumulation, total = per_rank * local.mesh.data;
      ReplicasByHand by_hand(local.options, local.mesh.data, per_rank);
      ReplicaOptions options = local.options;
      options.sync = SyncKind::periodic;
      options.outer_momentum = outer_momentum;
      options.optimizer.ema = ema_decay;
      test::ReplicaFixture fixture(options, 1, mesh);
      Replica& replica = fixture.replica;
      replica.weight_update().average()->anchor(replica.context());
      Replica& mine =
          by_hand.replicas[static_cast<std::size_t>(mesh.coordinates.data_rank)]->replica;
      for (int step = 0; step < 3 * 2; ++step) {
        fixture.step(rate, step * total + mesh.coordinates.data_rank * per_rank);
        by_hand.step(step * total);
        if (step % 2 == 1) {
          replica.weight_update().average()->average(replica.context());
          by_hand.average(static_cast<float>(outer_momentum));
        }
        EXPECT_LE(largest_difference(replica, replica.weight_update().store().flat_master(), mine,
                                     floats(mine.weight_update().store().flat_master())),
                  local.tolerance)
            << "step " << step;
      }
      const parallel::StateList slots = test::slots_of(replica.weight_update().optimizer()),
                                by_mine = test::slots_of(mine.weight_update().optimizer());
      for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        EXPECT_LE(largest_difference(replica, slots[slot].flat, mine, floats(by_mine[slot].flat)),
                  10 * local.tolerance);
      }
      // Each replica averages its own weights; the mean of these averages follows. Six steps of a
      // few float32 roundings of numbers of about 1.
      EXPECT_LE(largest_difference(replica, replica.weight_update().optimizer().ema(), mine,
                                   by_hand.ema.data()),
                local.tolerance + 2e-6);
      ASSERT_EQ(replica.weight_update().average()->velocity().defined(), outer_momentum > 0);
      if (outer_momentum == 0) continue;
      EXPECT_LE(largest_difference(replica, replica.weight_update().average()->velocity(), mine,
                                   by_hand.velocity.data()),
                10 * local.tolerance);
    }
  }
}

/// Replicas differ between averages and have the same bits after one, in every part of the model.
TEST(PeriodicSync, AnAverageLeavesAllReplicasWithTheSameBits) {
  const int ranks = world().size();
  for (const MeshShape& shape :
       {MeshShape{ranks, 1, 1}, MeshShape{std::max(1, ranks / 2), std::min(ranks, 2), 1}}) {
    SCOPED_TRACE(shape.tensor);
    ReplicaOptions options = options_of({"", shape, ShardKind::none, false, 2});
    options.sync = SyncKind::periodic;
    options.outer_momentum = 0.9;
    const parallel::Mesh mesh(shape, world());
    test::ReplicaFixture fixture(options, 1, mesh);
    Replica& replica = fixture.replica;
    const auto same = [&] {
      std::vector<float> mine = values(replica.weight_update().store().flat_master()), first = mine;
      mesh.data.broadcast(std::as_writable_bytes(std::span(first)), 0);
      return world().all_reduce(
                 std::memcmp(mine.data(), first.data(), mine.size() * sizeof(float)) == 0,
                 comm::Reduction::min) != 0;
    };
    replica.weight_update().average()->anchor(replica.context());
    for (int step = 0; step < 4; ++step) {
      fixture.step(rate, mesh.coordinates.data_rank * 2);
      EXPECT_EQ(same(), mesh.shape.data == 1);
      if (step % 2 == 0) continue;
      replica.weight_update().average()->average(replica.context());
      EXPECT_TRUE(same());
    }
  }
}

}  // namespace
}  // namespace trireme::train
