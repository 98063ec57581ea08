// SPDX-License-Identifier: Apache-2.0
//
// A replica at 1, 2 and 4 ranks and many layouts:
// - planned memory equals used memory, and the gradient equals that of one rank;
// - chunks of layers, and evaluations of the averaged weights, do not change the training;
// - the idle time of a pipeline matches the formula.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <thread>

#include "support/layout.hpp"
#include "support/mpi.hpp"
#include "support/training.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::train {
namespace {

using parallel::MeshShape;
using parallel::PipelineKind;
using parallel::ShardKind;
using test::Layout;

const comm::Communicator& world() { return test_environment().world(); }

ReplicaOptions options_of(const Layout& layout) { return test::small_gpt(4, layout); }

std::vector<Layout> layouts() {
  switch (world().size()) {
    case 1: return {{"one", {}}, {"recompute", {}, ShardKind::none, false, 1}};
    case 2:
      return {{"data", {2, 1, 1}},
              {"optimizer", {2, 1, 1}, ShardKind::optimizer},
              {"gradients", {2, 1, 1}, ShardKind::gradients},
              {"tensor", {1, 2, 1}},
              {"parameters", {2, 1, 1}, ShardKind::parameters},
              {"sequence", {1, 2, 1}, ShardKind::none, true, 2},
              {"pipeline", {1, 1, 2}},
              {"gpipe", {1, 1, 2}, ShardKind::none, false, 0, PipelineKind::gpipe},
              {"interleaved", {1, 1, 2}, ShardKind::none, false, 0, PipelineKind::interleaved, 2}};
    default:
      return {{"data", {4, 1, 1}},
              {"parameters", {4, 1, 1}, ShardKind::parameters, false, 1},
              {"data tensor", {2, 2, 1}, ShardKind::gradients, true},
              {"data pipeline", {2, 1, 2}, ShardKind::parameters},
              {"tensor pipeline", {1, 2, 2}, ShardKind::none, true},
              {"pipeline", {1, 1, 4}}};
  }
}

/// Returns the norm of the first step's gradient on one rank; every rank computes it for itself.
double norm_alone() {
  static const double norm = test::ReplicaFixture(options_of({"one", {}})).step(1e-3);
  return norm;
}

TEST(Replica, PlansEveryByteAtEveryLayout) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    const parallel::Mesh mesh(layout.mesh, world());
    test::ReplicaFixture fixture(options_of(layout), 1, mesh);
    const std::int64_t first = mesh.coordinates.data_rank * fixture.options.accumulation;
    for (int step = 0; step < 2; ++step) fixture.step(1e-3, first);
    fixture.evaluate(fixture.batch(0));
    fixture.engine.quiesce();
    const MemoryPlan used = fixture.replica.peaks();
    EXPECT_EQ(used.parameters, fixture.plan.parameters);
    EXPECT_EQ(used.gradients, fixture.plan.gradients);
    EXPECT_EQ(used.optimizer, fixture.plan.optimizer);
    EXPECT_EQ(used.activations, fixture.plan.activations);
    EXPECT_EQ(used.boundary, fixture.plan.boundary);
    EXPECT_EQ(used.workspace, fixture.plan.workspace);
    EXPECT_EQ(used.prepared_weights, fixture.plan.prepared_weights);
    EXPECT_EQ(used, fixture.plan);
  }
}

TEST(Replica, HasTheGradientOfOneRankAtEveryLayout) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    const parallel::Mesh mesh(layout.mesh, world());
    test::ReplicaFixture fixture(options_of(layout), 1, mesh);
    const double norm =
        fixture.step(1e-3, mesh.coordinates.data_rank * fixture.options.accumulation);
    // Float32 sums in another order.
    EXPECT_NEAR(norm, norm_alone(), 2e-5 * norm_alone());
  }
}

/// Options for layouts with split layers and micro-batches of 64 rows: 4 chunks of 16 rows, or 2 of
/// 32 at a tensor degree of 4.
ReplicaOptions chunked(const Layout& layout) {
  ReplicaOptions options = options_of(layout);
  options.micro = 8;
  options.global = test::micro_batches * options.micro;
  options.test_row_cut = {.max_chunks = 4, .min_rows = 16, .min_elements = 1};
  return options;
}

std::vector<Layout> split_layouts() {
  if (world().size() == 2)
    return {{"tensor", {1, 2, 1}},
            {"recomputed", {1, 2, 1}, ShardKind::none, false, 1},
            {"sequence", {1, 2, 1}, ShardKind::none, true, 2}};
  if (world().size() < 4) return {};
  return {{"tensor", {1, 4, 1}},
          {"sequence", {1, 4, 1}, ShardKind::none, true},
          {"data", {2, 2, 1}, ShardKind::parameters, true},
          {"pipeline", {1, 2, 2}, ShardKind::none, true}};
}

/// Returns whether a product gives a row the same bits for any number of rows. oneDNN 3.2 does for
/// float32 with its AVX-512 kernels, and does not with those for AVX2.
bool rows_are_independent() {
  OwnedStream stream(Device{});
  Arena memory(Device{}, "operands", std::int64_t{8} << 20),
      workspace(Device{}, "workspace", std::int64_t{8} << 20),
      prepared(Device{}, "prepared weights", std::int64_t{8} << 20);
  ops::Context context(stream, workspace, prepared, DeviceKind::cpu);
  const auto numbers = [&](const Shape& shape) {
    const Tensor tensor = memory.allocate(DType::float32, shape);
    for (std::int64_t i = 0; i < tensor.elements(); ++i)
      tensor.as<float>()[i] = std::sin(static_cast<float>(7 * i + 1));
    return tensor;
  };
  constexpr std::int64_t rows = 64;  // as in chunked()
  for (const std::int64_t in : {4, 9, 10, 12, 16, 64}) {
    for (const std::int64_t out : {4, 9, 10, 12, 16, 64}) {
      for (const ops::MatrixOrder order : {ops::MatrixOrder::in_out, ops::MatrixOrder::out_in}) {
        const ArenaScope scope(memory);
        const bool in_out = order == ops::MatrixOrder::in_out;
        const ops::Weight weight{.value = numbers(in_out ? Shape{in, out} : Shape{out, in})};
        const Tensor x = numbers({rows, in}), y = numbers({rows, out}), dy = numbers({rows, out}),
                     dx = numbers({rows, in}), y_of_chunks = numbers({rows, out}),
                     dx_of_chunks = numbers({rows, in});
        ops::Linear layer{.rows = rows, .in = in, .out = out, .order = order};
        ops::linear_forward(context, layer, x, weight, {}, y);
        ops::linear_backward_data(context, layer, dy, weight, dx);
        const auto differ = [](const Tensor& a, const Tensor& b) {
          return std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes())) != 0;
        };
        for (const std::int64_t chunk : {16, 32}) {
          layer.rows = chunk;
          for (std::int64_t begin = 0; begin < rows; begin += chunk) {
            const std::int64_t end = begin + chunk;
            ops::linear_forward(context, layer, x.rows(begin, end), weight, {},
                                y_of_chunks.rows(begin, end));
            ops::linear_backward_data(context, layer, dy.rows(begin, end), weight,
                                      dx_of_chunks.rows(begin, end));
          }
          if (differ(y, y_of_chunks) || differ(dx, dx_of_chunks)) return false;
        }
      }
    }
  }
  return true;
}

/// A row of a product, and of a sum over ranks, has the same terms in the same order in every
/// chunk, if the library's products do not depend on the number of rows. With sequence parallelism
/// chunks determine which rows a rank holds between products, so the gradients of norms are added
/// in another order.
TEST(Replica, ChunksOfLayersChangeOnlyTheOrderOfNormsGradients) {
  const bool same_products = rows_are_independent();
  for (const Layout& layout : split_layouts()) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      SCOPED_TRACE(std::string(layout.name) + " " + to_string(compute));
      const parallel::Mesh mesh(layout.mesh, world());
      ReplicaOptions options = chunked(layout);
      options.deterministic = true;
      options.compute = compute;
      const test::TrainingResult cut = test::train_three_steps(options, mesh),
                                 again = test::train_three_steps(options, mesh);
      test::expect_same_bits(cut, again);
      options.test_row_cut.max_chunks = 1;
      const test::TrainingResult whole = test::train_three_steps(options, mesh);
      if (!options.sequence && same_products) {
        test::expect_same_bits(cut, whole);
        continue;
      }
      ASSERT_EQ(cut.norms.size(), whole.norms.size());
      EXPECT_NEAR(cut.norms[0], whole.norms[0], 2e-5 * whole.norms[0]);  // as between layouts
    }
  }
}

TEST(Replica, HasTheGradientOfOneRankWhereLayersAreCutIntoChunks) {
  double alone = 0;
  for (const Layout& layout : split_layouts()) {
    SCOPED_TRACE(layout.name);
    if (alone == 0) alone = test::ReplicaFixture(chunked({"one", {}})).step(1e-3);
    const parallel::Mesh mesh(layout.mesh, world());
    test::ReplicaFixture fixture(chunked(layout), 1, mesh);
    const double norm =
        fixture.step(1e-3, mesh.coordinates.data_rank * fixture.options.accumulation);
    EXPECT_NEAR(norm, alone, 2e-5 * alone);
  }
}

/// Evaluations of the average between the steps change no bit of the training, and the memory plan
/// remains exact.
TEST(Replica, EvaluatingTheAverageLeavesTrainingUnchanged) {
  for (const Layout& layout : layouts()) {
    for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
      SCOPED_TRACE(std::string(layout.name) + " " + to_string(compute));
      const parallel::Mesh mesh(layout.mesh, world());
      ReplicaOptions options = options_of(layout);
      options.deterministic = true;
      options.compute = compute;
      const test::TrainingResult plain = test::train_three_steps(options, mesh);
      options.optimizer.ema = 0.5;
      const test::TrainingResult averaged = test::train_three_steps(options, mesh);
      test::expect_same_training(averaged, plain);
      EXPECT_EQ(averaged.ema.size(), averaged.master.size());
      EXPECT_NE(averaged.ema, averaged.master);
      EXPECT_EQ(averaged.evaluated.loss != plain.evaluated.loss,
                mesh.coordinates.stage + 1 == mesh.shape.pipeline)
          << "which the last stage knows";
    }
  }
}

/// Returns the seconds from the first action of any rank to the last one, and the seconds in which
/// this rank worked. Collective.
std::pair<double, double> timed_step(test::ReplicaFixture& fixture) {
  comm::Engine& engine = fixture.engine;
  double busy = 0, first = 0, last = 0;
  world().barrier();
  fixture.reducer().begin_step();
  for (const parallel::PipelineAction& action : fixture.replica.stage().schedule()) {
    const double begin = monotonic_seconds(), waited_before = engine.waited_seconds();
    const data::MicroBatch batch = fixture.batch(action.micro_batch);
    if (action.forward)
      fixture.replica.stage().forward(action,
                                      PipelineStage::takes_batch(action) ? &batch : nullptr);
    else
      fixture.replica.stage().backward(action);
    last = monotonic_seconds();
    busy += last - begin - (engine.waited_seconds() - waited_before);
    if (first == 0) first = begin;
  }
  fixture.reducer().finish(fixture.replica.context());
  double ends[2] = {-first, last};
  world().all_reduce(std::span(ends), comm::Reduction::max);
  return {ends[1] + ends[0], busy};
}

struct Bubble {
  double measured = 0;   ///< idle time of this stage divided by its busy time
  double max_error = 1;  ///< maximum deviation from the prediction over all stages
};

/// Returns the shortest of five steps, because other work on the machine only lengthens a step.
/// Blocks sleep `delay` seconds in forward and twice that in backward, in an op that a block has
/// once. Collective.
Bubble bubble_of(PipelineKind kind, double delay, double predicted) {
  ReplicaOptions options = options_of({"pipeline", {1, 1, 4}, ShardKind::none, false, 0, kind});
  options.model.as<model::TransformerOptions>().layers =
      3;  // one block a stage, including the embedding
  const parallel::Mesh mesh({1, 1, 4}, world());
  test::ReplicaFixture fixture(options, 1, mesh);
  fixture.replica.context().set_op_observer([delay](const ops::OpCall& call) {
    const bool forward = call.op == "embedding_forward" || call.op == "attention_forward",
               backward = call.op == "embedding_backward" || call.op == "attention_backward";
    if (forward || backward)
      std::this_thread::sleep_for(std::chrono::duration<double>(forward ? delay : 2 * delay));
  });
  fixture.step(1e-3);  // warm-up
  Bubble found;
  double least = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto [span, busy] = timed_step(fixture);
    if (span >= least) continue;
    least = span;
    found.measured = (span - busy) / busy;
    found.max_error = std::abs(found.measured - predicted);
  }
  world().all_reduce(std::span(&found.max_error, 1), comm::Reduction::max);
  return found;
}

/// Increases the delay of the blocks until other costs on two cores (such as messages that wait for
/// their reader) are small in comparison.
TEST(Replica, ThePipelineBubbleMatchesTheFormula) {
  if (world().size() != 4) GTEST_SKIP() << "a pipeline of 4 stages";
  // (stages - 1) / micro-batches (Huang et al. 2019).
  const double predicted = 3.0 / static_cast<double>(test::micro_batches);
  for (const PipelineKind kind : {PipelineKind::gpipe, PipelineKind::one_forward_one_backward}) {
    Bubble found;
    for (double delay = 0.02; delay < 0.4 && found.max_error > 0.2 * predicted; delay *= 2)
      found = bubble_of(kind, delay, predicted);
    EXPECT_NEAR(found.measured, predicted, 0.2 * predicted)
        << "schedule " << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace trireme::train
