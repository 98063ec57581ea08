// SPDX-License-Identifier: Apache-2.0
//
// parallel.sync_batch_norm at 2 and 4 ranks:
// - groups of k ranks with micro-batches of m samples train as ranks with micro-batches of k m
//   samples, for every kind of sharding, recomputation and delayed sums, and in a pipeline;
// - joined statistics have the same bits on all ranks of a group, and a run repeats its bits;
// - planned memory equals used memory, and the bytes sent are those that the log states.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/mpi.hpp"
#include "support/training.hpp"
#include "trireme/train/records/describe.hpp"

namespace trireme::train {
namespace {

using parallel::MeshShape;
using parallel::ShardKind;

const comm::Communicator& world() { return test_environment().world(); }

constexpr std::int64_t joined_micro = 8;  // samples that are normalized together

struct Layout {
  std::string name;
  MeshShape mesh;
  std::int64_t accumulation = 1;
  ShardKind shard = ShardKind::none;
  int recompute = 0;
  parallel::SyncKind sync = parallel::SyncKind::step;
  bool deterministic = false;
  DeviceKind device = DeviceKind::cpu;
};

std::vector<Layout> layouts() {
  const int ranks = world().size();
  const MeshShape all{.data = ranks, .batch_norm = ranks};
  std::vector<Layout> layouts{
      {"all", all},
      {"several micro-batches", all, 3},
      {"recomputed", all, 2, ShardKind::none, 2},
      {"parameters", all, 2, ShardKind::parameters, 1},
      {"tree", all, 2, ShardKind::none, 0, parallel::SyncKind::step, true},
      {"delayed", all, 1, ShardKind::gradients, 0, parallel::SyncKind::delayed},
      {"emulated", all, 2, ShardKind::none, 2, parallel::SyncKind::step, false,
       DeviceKind::emulated}};
  if (ranks < 4) return layouts;
  layouts.push_back({"pairs", {.data = 4, .batch_norm = 2}, 2});
  layouts.push_back({"pairs of shards", {.data = 4, .batch_norm = 2}, 1, ShardKind::optimizer});
  layouts.push_back({"pipeline", {.data = 2, .pipeline = 2, .batch_norm = 2}, 4});
  layouts.push_back({"pipeline of shards",
                     {.data = 2, .pipeline = 2, .batch_norm = 2},
                     4,
                     ShardKind::parameters,
                     1});
  layouts.push_back({"emulated pairs",
                     {.data = 4, .batch_norm = 2},
                     2,
                     ShardKind::none,
                     0,
                     parallel::SyncKind::step,
                     true,
                     DeviceKind::emulated});
  return layouts;
}

/// Returns the options of a replica whose group normalizes joined_micro samples together.
ReplicaOptions options_of(const Layout& layout) {
  ReplicaOptions options = test::small_resnet();
  options.micro = joined_micro / layout.mesh.batch_norm;
  options.accumulation = layout.accumulation;
  options.global = options.micro * layout.accumulation * layout.mesh.data;
  options.bucket_bytes = 4096;
  options.shard = layout.shard;
  options.recompute = layout.recompute;
  options.sync = layout.sync;
  options.deterministic = layout.deterministic;
  return options;
}

/// Returns the options of one rank that runs the joined micro-batches of all groups.
ReplicaOptions alone(const Layout& layout) {
  ReplicaOptions options = options_of({.name = "alone", .mesh = {}});
  options.accumulation = layout.accumulation * layout.mesh.data / layout.mesh.batch_norm;
  options.global = options.accumulation * joined_micro;
  options.sync = layout.sync;
  return options;
}

/// Trains on samples that are functions of their number in the epoch.
struct Trainer {
  Trainer(const ReplicaOptions& options, const parallel::Mesh& mesh, Device device = {})
      : fixture(options, 1, mesh, device) {}

  /// Returns the micro-batch that begins at a sample.
  data::MicroBatch batch(std::int64_t first) {
    const data::MicroBatch batch = fixture.batch(0);
    const std::int64_t pixels = fixture.options.image.elements();
    for (std::int64_t b = 0; b < fixture.options.micro; ++b) {
      const auto sample = static_cast<std::uint64_t>(first + b);
      const auto label = static_cast<std::int32_t>(sample % 5);
      fixture.labels[static_cast<std::size_t>(b)] = label;
      for (std::int64_t p = 0; p < pixels; ++p)
        fixture.images[static_cast<std::size_t>(b * pixels + p)] = static_cast<std::uint8_t>(
            20.0 * label + 80.0 * uniform_at(sample, static_cast<std::uint64_t>(p)));
    }
    return batch;
  }
  /// Runs step `number`. The ranks of a group take micro-batches of their part of the step
  /// alternately, as in the loader. Returns the loss of all ranks.
  double step(std::int64_t number) {
    const ReplicaOptions& options = fixture.options;
    const MeshShape& shape = fixture.mesh.shape;
    const int rank_in_part = fixture.mesh.coordinates.data_rank % shape.batch_norm,
              first_rank = fixture.mesh.coordinates.data_rank - rank_in_part;
    const std::int64_t part =
        number * options.global + first_rank * options.accumulation * options.micro;
    PipelineStage& stage = fixture.replica.stage();
    fixture.replica.begin_step();
    for (const parallel::PipelineAction& action : stage.schedule()) {
      if (!action.forward) {
        stage.backward(action);
        continue;
      }
      const data::MicroBatch micro =
          batch(part + (action.micro_batch * shape.batch_norm + rank_in_part) * options.micro);
      stage.forward(action, PipelineStage::takes_batch(action) ? &micro : nullptr);
    }
    double loss = 0;
    for (const Sums& sums : fixture.micro_batch_sums()) loss += sums.loss;
    const parallel::GradientReducer::ReducedGradient gradient =
        fixture.reducer().finish(fixture.replica.context());
    norm = 0;
    if (gradient.exists)
      norm = fixture.optimizer()
                 .step(fixture.replica.context(), 0.02, gradient.finite, gradient.scale)
                 .grad_norm;
    fixture.store().start_gather(fixture.replica.context());
    fixture.engine.quiesce();
    // The last stage has the loss; tests have no tensor ranks.
    fixture.mesh.world.all_reduce(std::span(&loss, 1), comm::Reduction::sum);
    return loss / static_cast<double>(options.global);
  }
  /// Evaluates 8 samples by running statistics.
  double evaluate() {
    double loss = 0;
    for (std::int64_t first = 0; first < joined_micro; first += fixture.options.micro)
      loss += fixture.evaluate(batch(first)).loss;
    fixture.mesh.pipeline.all_reduce(std::span(&loss, 1), comm::Reduction::sum);
    return loss / joined_micro;
  }

  test::ReplicaFixture fixture;
  double norm = 0;
};

constexpr int steps = 3;

TEST(SyncBatchNorm, AGroupTrainsAsOneRankWithItsMicroBatches) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    Trainer group(options_of(layout), parallel::Mesh(layout.mesh, world()), {layout.device, 0}),
        one(alone(layout), parallel::Mesh({}, comm::Communicator()));
    for (int step = 0; step < steps; ++step) {
      const double expected = one.step(step), loss = group.step(step);
      // Float32 sums in another order.
      EXPECT_NEAR(loss, expected, 1e-5 * expected) << "step " << step;
      EXPECT_NEAR(group.norm, one.norm, 1e-4 * one.norm) << "step " << step;
    }
    // Running statistics, and the weights.
    const double expected = one.evaluate();
    EXPECT_NEAR(group.evaluate(), expected, 1e-5 * expected);
    EXPECT_EQ(group.fixture.replica.peaks(), group.fixture.plan);
  }
}

/// Without the group the same layout trains otherwise, by far more than the tolerance.
TEST(SyncBatchNorm, StatisticsOfEachRankAreOthers) {
  Layout layout = layouts()[0];
  Trainer group(options_of(layout), parallel::Mesh(layout.mesh, world()));
  const ReplicaOptions options = options_of(layout);
  layout.mesh.batch_norm = 1;
  Trainer single(options, parallel::Mesh(layout.mesh, world()));
  const double joined = group.step(0);
  EXPECT_GT(std::abs(single.step(0) - joined), 1e-3 * joined);
}

TEST(SyncBatchNorm, ARunRepeatsItsBits) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    std::vector<float> state[2];
    for (std::vector<float>& each : state) {
      Trainer run(options_of(layout), parallel::Mesh(layout.mesh, world()), {layout.device, 0});
      for (int step = 0; step < steps; ++step) run.step(step);
      test::append_values(run.fixture.replica, run.fixture.store().flat_master(), each);
    }
    test::expect_same_bits(state[0], state[1]);
  }
}

/// Each rank has other numbers, among them a channel with a large mean.
TEST(SyncBatchNorm, JoinedStatisticsHaveTheSameBitsOnAllRanks) {
  const MeshShape shape{.data = world().size(), .batch_norm = 2};
  const parallel::Mesh mesh(shape, world());
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  const parallel::BatchNormGroup group(mesh.batch_norm, engine);
  OwnedStream stream(Device{});
  Arena memory(Device{}, "tensors", 1 << 20), workspace(Device{}, "workspace", 1 << 20);
  ops::Context context(stream, workspace, memory);
  const ops::BatchNorm op{.rows = 37, .channels = 9};
  const Tensor x = memory.allocate(DType::float32, {op.rows, op.channels});
  for (std::int64_t i = 0; i < x.elements(); ++i)
    x.as<float>()[i] = std::sin(static_cast<float>(i * (world().rank() + 2))) +
                       (i % op.channels == 3 ? 1e4f : 0.0f);
  const auto vector = [&] { return memory.allocate(DType::float32, {op.channels}); };
  const ops::BatchStatistics joined{vector(), vector(), vector()};
  const Tensor all = memory.allocate(DType::float32, {2, 2 * op.channels}),
               own = all.rows(group.get().rank, group.get().rank + 1).reshaped({2 * op.channels});
  ops::batch_norm_statistics(
      context, op, x, {own.rows(0, op.channels), vector(), own.rows(op.channels, 2 * op.channels)});
  ops::batch_norm_join(context, op, group.get(), all, joined);
  for (const Tensor& statistic : {joined.mean, joined.rstd, joined.unbiased_variance}) {
    const auto size = static_cast<std::size_t>(op.channels);
    std::vector<float> both(2 * size);
    mesh.batch_norm.all_gather(std::as_bytes(std::span(statistic.as<float>(), size)),
                               std::as_writable_bytes(std::span(both)));
    EXPECT_EQ(std::memcmp(both.data(), both.data() + size, size * sizeof(float)), 0);
    for (const float value : both) EXPECT_TRUE(std::isfinite(value));
  }
}

/// On real groups, and on those of a plan.
TEST(SyncBatchNorm, SendsTheBytesThatTheLogStates) {
  for (const Layout& layout : layouts()) {
    if (layout.mesh.pipeline > 1) continue;  // A stage sends a part.
    SCOPED_TRACE(layout.name);
    const ReplicaOptions options = options_of(layout);
    double sent[2];
    for (const bool joins : {false, true}) {
      MeshShape shape = layout.mesh;
      if (!joins) shape.batch_norm = 1;
      Trainer run(options, parallel::Mesh(shape, world()), {layout.device, 0});
      run.step(0);
      sent[joins] = run.fixture.engine.bytes_sent();
    }
    const Device meta{DeviceKind::meta, 0};
    comm::Engine engine(comm::Engine::ProgressMode::polled);
    const parallel::Mesh absent = parallel::Mesh::meta(layout.mesh, world().rank());
    Replica planned(options, meta, layout.device, {}, absent, engine);
    test::ReplicaFixture batches(options_of({.name = "alone", .mesh = {}}));
    const data::MicroBatch batch = batches.batch(0);
    planned.begin_step();
    for (const parallel::PipelineAction& action : planned.stage().schedule())
      action.forward ? planned.stage().forward(action, &batch) : planned.stage().backward(action);
    const double expected =
        batch_norm_bytes(planned.model().parameters(), options, layout.mesh.batch_norm);
    EXPECT_GT(expected, 0);
    EXPECT_EQ(absent.batch_norm.meta_bytes(), expected);
    EXPECT_EQ(sent[true] - sent[false], expected);
  }
}

}  // namespace
}  // namespace trireme::train
