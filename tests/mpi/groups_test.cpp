// SPDX-License-Identifier: Apache-2.0
//
// Parameter groups, frozen weights, clipped values and stochastic depth at 1, 2 and 4 ranks and
// many layouts: the training is that of one rank, the planned memory is the used memory, and frozen
// weights keep every bit.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/layout.hpp"
#include "support/mpi.hpp"
#include "support/training.hpp"
#include "trireme/optim/groups.hpp"

namespace trireme::train {
namespace {

using parallel::PipelineKind;
using parallel::ShardKind;
using test::Layout;

const comm::Communicator& world() { return test_environment().world(); }

std::vector<Layout> layouts() {
  switch (world().size()) {
    case 1:
      return {{"one", {}},
              {"recompute", {}, ShardKind::none, false, 1},
              {"every 2", {}, ShardKind::none, false, 2}};
    case 2:
      return {{"data", {2, 1, 1}},
              {"optimizer", {2, 1, 1}, ShardKind::optimizer},
              {"gradients", {2, 1, 1}, ShardKind::gradients},
              {"parameters", {2, 1, 1}, ShardKind::parameters, false, 1},
              {"tensor", {1, 2, 1}},
              {"sequence", {1, 2, 1}, ShardKind::none, true, 2},
              {"pipeline", {1, 1, 2}},
              {"interleaved", {1, 1, 2}, ShardKind::none, false, 0, PipelineKind::interleaved, 2}};
    default:
      return {{"parameters", {4, 1, 1}, ShardKind::parameters},
              {"data tensor", {2, 2, 1}, ShardKind::gradients, true},
              {"data pipeline", {2, 1, 2}, ShardKind::parameters},
              {"optimizer pipeline", {2, 1, 2}, ShardKind::optimizer},
              {"tensor pipeline", {1, 2, 2}, ShardKind::none, true},
              {"pipeline", {1, 1, 4}}};
  }
}

/// A set of groups by name. GPT-2's names.
const std::map<std::string, std::vector<optim::ParameterGroup>> groups_by_name = {
    {"rates", {{.match = "*.bias", .rate_ratio = 2, .decay = 0.2}, {.match = "h.1.*", .decay = 0}}},
    // The first stage of a pipeline trains nothing.
    {"first blocks",
     {{.match = "w?e.weight", .frozen = true},
      {.match = "h.0.*", .frozen = true},
      {.match = "h.1.*", .frozen = true},
      {.match = "h.2.*", .rate_ratio = 0.5}}},
    // Norms, some biases and some matrices whose bias is trained: every block has both kinds.
    {"norms",
     {{.match = "*.ln_?.*", .frozen = true},
      {.match = "*attn*bias", .frozen = true},
      {.match = "*mlp*weight", .frozen = true}}},
    // The head alone.
    {"head", {{.match = "ln_f.*"}, {.match = "*", .frozen = true}}}};

ReplicaOptions options_of(const Layout& layout, const std::string& groups) {
  ReplicaOptions options = test::small_gpt(4, layout);
  options.model.as<model::TransformerOptions>().drop_path = 0.4;
  options.optimizer.weight_decay = 0.1;
  options.optimizer.clip_value = 1e-3;
  options.optimizer.ema = 0.5;
  options.optimizer.groups = groups_by_name.at(groups);
  return options;
}

/// Runs three steps and returns the norms of their gradients.
std::vector<double> norms_of(const ReplicaOptions& options, const parallel::Mesh& mesh) {
  const test::TrainingResult result = test::train_three_steps(options, mesh);
  return result.norms;
}

TEST(Groups, TrainAsOneRankAtEveryLayout) {
  for (const auto& [name, groups] : groups_by_name) {
    const std::vector<double> alone =
        norms_of(options_of({"one", {}}, name), parallel::Mesh({}, comm::Communicator()));
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(name + ", " + layout.name);
      const std::vector<double> norms =
          norms_of(options_of(layout, name), parallel::Mesh(layout.mesh, world()));
      // Float32 sums in another order. The norm of the third step is that of weights after two
      // updates of AdamW, which divides small differences by small gradients.
      EXPECT_NEAR(norms[0], alone[0], 2e-5 * alone[0]);
      EXPECT_NEAR(norms[2], alone[2], 2e-4 * alone[2]);
    }
  }
}

/// Test options other than the default precision: bits are equal at every power of two of data
/// ranks and every kind of sharding.
TEST(Groups, HaveTheSameBitsAtEveryShardingAndRecomputation) {
  for (const std::string name : {"first blocks", "norms"}) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      ReplicaOptions one = options_of({"one", {}}, name);
      one.deterministic = true;
      one.compute = compute;
      const std::vector<double> alone = norms_of(one, parallel::Mesh({}, comm::Communicator()));
      for (const Layout& layout : layouts()) {
        if (layout.mesh.tensor > 1 || layout.mesh.pipeline > 1) continue;
        SCOPED_TRACE(name + ", " + layout.name + ", " + to_string(compute));
        ReplicaOptions options = options_of(layout, name);
        options.deterministic = true;
        options.compute = compute;
        EXPECT_EQ(norms_of(options, parallel::Mesh(layout.mesh, world())), alone);
      }
    }
  }
}

TEST(Groups, FrozenWeightsKeepEveryBitAndHaveNoState) {
  for (const auto& [name, groups] : groups_by_name) {
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(name + ", " + layout.name);
      const parallel::Mesh mesh(layout.mesh, world());
      test::ReplicaFixture fixture(options_of(layout, name), 1, mesh);
      const auto master = [&](std::int32_t index) {
        std::vector<float> numbers;
        test::append_values(fixture.replica, fixture.store().master({index}), numbers);
        return numbers;
      };
      const auto& entries = fixture.store().list().entries();
      std::vector<std::vector<float>> before;
      std::int64_t trained = 0;
      for (std::size_t i = 0; i < entries.size(); ++i) {
        before.push_back(master(static_cast<std::int32_t>(i)));
        if (!entries[i].spec.frozen) trained += static_cast<std::int64_t>(before.back().size());
      }
      for (int step = 0; step < 2; ++step)
        fixture.step(0.01, mesh.coordinates.data_rank * fixture.options.accumulation);
      fixture.evaluate(fixture.batch(0));
      fixture.engine.quiesce();
      for (std::size_t i = 0; i < entries.size(); ++i) {
        EXPECT_EQ(entries[i].spec.frozen, optim::is_frozen(groups, entries[i].spec));
        if (before[i].empty()) continue;
        EXPECT_EQ(master(static_cast<std::int32_t>(i)) == before[i], entries[i].spec.frozen)
            << entries[i].spec.name;
      }
      // Gaps between tensors are at most 15 elements each.
      const auto gaps = static_cast<std::int64_t>(15 * entries.size());
      for (const parallel::StateEntry& slot : test::slots_of(fixture.optimizer())) {
        EXPECT_GE(slot.flat.elements(), trained);
        EXPECT_LE(slot.flat.elements(), trained + gaps);
      }
      EXPECT_LE(fixture.store().flat_gradient().elements(), trained + gaps);
      EXPECT_EQ(fixture.replica.peaks(), fixture.plan);
    }
  }
}

/// Offloaded state is processed window by window; averages of local SGD skip frozen tensors.
TEST(Groups, PlanEveryByteWithOffloadAndLocalSteps) {
  for (const auto& [name, groups] : groups_by_name) {
    for (const bool everything : {false, true}) {
      SCOPED_TRACE(name);
      const parallel::Mesh mesh({world().size(), 1, 1}, world());
      ReplicaOptions options = options_of(
          {"offload", mesh.shape, everything ? ShardKind::parameters : ShardKind::none}, name);
      options.deterministic = true;
      const std::vector<double> plain = norms_of(options, mesh);
      options.offload = {.optimizer = true, .parameters = everything, .activations = everything};
      EXPECT_EQ(norms_of(options, mesh), plain);
    }
    ReplicaOptions options = options_of({"local", {world().size(), 1, 1}}, name);
    options.sync = parallel::SyncKind::periodic;
    options.outer_momentum = 0.5;
    const parallel::Mesh mesh({world().size(), 1, 1}, world());
    test::ReplicaFixture fixture(options, 1, mesh);
    fixture.replica.weight_update().average()->anchor(fixture.replica.context());
    fixture.step(0.01, mesh.coordinates.data_rank * fixture.options.accumulation);
    fixture.replica.weight_update().average()->average(fixture.replica.context());
    fixture.evaluate(fixture.batch(0));
    EXPECT_EQ(fixture.replica.peaks(), fixture.plan);
  }
}

}  // namespace
}  // namespace trireme::train
