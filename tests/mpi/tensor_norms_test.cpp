// SPDX-License-Identifier: Apache-2.0
//
// Norms of every tensor, at 1, 2 and 4 ranks, with every optimizer and kind of sharding:
// - they are those of the weights and gradients themselves, and trust ratios follow the formulas;
// - all layouts measure what one rank measures;
// - no bit of the training changes, and planned memory equals used memory;
// - a skipped step names the last tensor whose gradient is not finite.

#include "trireme/optim/tensor_norms.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/layout.hpp"
#include "support/mpi.hpp"
#include "support/training.hpp"

namespace trireme::train {
namespace {

using optim::rule;
using optim::TensorNorm;
using optim::UpdateRule;
using parallel::PipelineKind;
using parallel::ShardKind;
using test::Layout;

const comm::Communicator& world() { return test_environment().world(); }

constexpr double rate = 0.01;

ReplicaOptions options_of(const Layout& layout, const UpdateRule* used) {
  ReplicaOptions options = test::small_gpt(4, layout);
  options.optimizer.rule = used;
  options.optimizer.weight_decay = 0.1;
  options.optimizer.clip_norm = 0.5;
  options.optimizer.newton_schulz = DType::float32;
  options.tensor_norms = true;
  return options;
}

struct LayoutCase {
  Layout layout;
  parallel::Offload offload = {};
};

std::vector<LayoutCase> layouts() {
  const parallel::Offload slots{.optimizer = true}, all{.optimizer = true, .parameters = true};
  switch (world().size()) {
    case 1: return {{{"one", {}}}, {{"offloaded slots", {}}, slots}};
    case 2:
      return {{{"data", {2, 1, 1}}},
              {{"optimizer", {2, 1, 1}, ShardKind::optimizer}, slots},
              {{"gradients", {2, 1, 1}, ShardKind::gradients}},
              {{"parameters", {2, 1, 1}, ShardKind::parameters}, all},
              {{"sequence", {1, 2, 1}, ShardKind::none, true}},
              {{"pipeline", {1, 1, 2}}}};
    default:
      return {{{"parameters", {4, 1, 1}, ShardKind::parameters}},
              {{"data tensor", {2, 2, 1}, ShardKind::optimizer, true}},
              {{"data pipeline", {2, 1, 2}, ShardKind::gradients}},
              {{"tensor pipeline", {1, 2, 2}}}};
  }
}

/// Runs a step; `measures`: returns the norms of its tensors.
std::vector<TensorNorm> run_step(test::ReplicaFixture& fixture, bool measures,
                                 optim::StepOutcome* outcome = nullptr) {
  fixture.gradients(fixture.mesh.coordinates.data_rank * fixture.options.accumulation);
  fixture.optimizer().begin_update(fixture.replica.context(), {.learning_rate = rate}, {},
                                   measures);
  const optim::StepOutcome ended = fixture.optimizer().end_update();
  if (outcome != nullptr) *outcome = ended;
  fixture.store().start_gather(fixture.replica.context());
  return measures ? fixture.optimizer().tensor_norms() : std::vector<TensorNorm>{};
}

double norm_of(const Tensor& tensor) {
  double sum = 0;
  for (std::int64_t i = 0; i < tensor.elements(); ++i)
    sum += static_cast<double>(tensor.as<float>()[i]) * tensor.as<float>()[i];
  return std::sqrt(sum);
}

std::vector<float> copy_of(const Tensor& tensor) {
  return {tensor.as<float>(), tensor.as<float>() + tensor.elements()};
}

/// Returns the norms of the second step on one rank; every rank computes them for itself.
const std::vector<TensorNorm>& norms_alone(const UpdateRule* used) {
  static std::map<const UpdateRule*, std::vector<TensorNorm>> found;
  std::vector<TensorNorm>& norms = found[used];
  if (norms.empty()) {
    test::ReplicaFixture fixture(options_of(Layout{"one", {}}, used));
    run_step(fixture, false);
    norms = run_step(fixture, true);
  }
  return norms;
}

TEST(TensorNorms, AreThoseOfTheTensorsThemselves) {
  for (const UpdateRule* used : optim::rules()) {
    SCOPED_TRACE(used->word);
    test::ReplicaFixture fixture(options_of(Layout{"one", {}}, used));
    run_step(fixture, false);
    const auto& entries = fixture.store().list().entries();
    std::vector<std::vector<float>> before;
    for (std::size_t i = 0; i < entries.size(); ++i)
      before.push_back(copy_of(fixture.store().master({static_cast<std::int32_t>(i)})));
    // LAMB overwrites the gradient, so it is read before the update.
    fixture.gradients();
    std::vector<double> gradients;
    double total = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      gradients.push_back(norm_of(fixture.store().gradient({static_cast<std::int32_t>(i)})));
      total += gradients[i] * gradients[i];
    }
    fixture.optimizer().begin_update(fixture.replica.context(), {.learning_rate = rate}, {}, true);
    EXPECT_NEAR(fixture.optimizer().end_update().grad_norm, std::sqrt(total), 1e-6);
    const std::vector<TensorNorm> norms = fixture.optimizer().tensor_norms();
    ASSERT_EQ(norms.size(), entries.size());
    const double clip = std::min(1.0, 0.5 / std::sqrt(total));
    int trusted = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      SCOPED_TRACE(entries[i].spec.name);
      const std::vector<float> after =
          copy_of(fixture.store().master({static_cast<std::int32_t>(i)}));
      double weight = 0, update = 0;
      for (std::size_t k = 0; k < after.size(); ++k) {
        weight += static_cast<double>(before[i][k]) * before[i][k];
        update += (static_cast<double>(after[k]) - before[i][k]) *
                  (static_cast<double>(after[k]) - before[i][k]);
      }
      EXPECT_NEAR(norms[i].weight, std::sqrt(weight), 1e-9 * std::sqrt(weight));
      EXPECT_NEAR(norms[i].gradient, gradients[i], 1e-9 * gradients[i]);
      // The difference is rounded once.
      EXPECT_NEAR(norms[i].update, std::sqrt(update), 1e-6 * std::sqrt(update));
      EXPECT_GT(norms[i].update, 0);
      const bool has_ratio = used->trust != nullptr;
      ASSERT_EQ(norms[i].trust_ratio.has_value(), has_ratio && entries[i].spec.trust);
      if (!norms[i].trust_ratio) continue;
      ++trusted;
      if (used == &rule("lars")) {
        const double decay = entries[i].spec.decay ? 0.1 : 0, norm = std::sqrt(weight);
        const double expected = 0.001 * norm / (clip * gradients[i] + decay * norm);
        EXPECT_NEAR(*norms[i].trust_ratio, expected, 1e-5 * expected);
      } else {
        // LAMB: |update| = rate * ratio * |direction|, and ratio = |w| / |direction|, at most 10.
        EXPECT_LE(*norms[i].trust_ratio, 10);
        if (*norms[i].trust_ratio < 10) {
          EXPECT_NEAR(norms[i].update, rate * norms[i].weight, 1e-3 * norms[i].update);
        }
      }
    }
    EXPECT_EQ(trusted > 3, used->trust != nullptr);
  }
}

TEST(TensorNorms, AreTheSameAtEveryLayout) {
  for (const auto& [layout, offload] : layouts()) {
    for (const UpdateRule* used : optim::rules()) {
      SCOPED_TRACE(std::string(layout.name) + ", optimizer " + used->word);
      ReplicaOptions options = options_of(layout, used);
      options.offload = offload;
      test::ReplicaFixture fixture(options, 1, parallel::Mesh(layout.mesh, world()));
      run_step(fixture, false);
      const std::vector<TensorNorm> norms = run_step(fixture, true), &alone = norms_alone(used);
      ASSERT_EQ(norms.size(), alone.size());
      for (std::size_t i = 0; i < norms.size(); ++i) {
        SCOPED_TRACE(i);
        // Gradients differ by the rounding of their sums (1e-5). Adam's form divides tiny gradients
        // by their own size, so it magnifies the rounding of those; so does the iteration that
        // brings all singular values of a matrix near 1.
        const bool magnifies = used->corrects_bias || used->scope == optim::RuleScope::matrix;
        const double tolerance = magnifies ? 2e-3 : 1e-4;
        EXPECT_NEAR(norms[i].weight, alone[i].weight, tolerance * alone[i].weight);
        EXPECT_NEAR(norms[i].gradient, alone[i].gradient, tolerance * alone[i].gradient + 1e-7);
        EXPECT_NEAR(norms[i].update, alone[i].update, tolerance * alone[i].update + 1e-7);
        ASSERT_EQ(norms[i].trust_ratio.has_value(), alone[i].trust_ratio.has_value());
        if (norms[i].trust_ratio) {
          EXPECT_NEAR(*norms[i].trust_ratio, *alone[i].trust_ratio,
                      tolerance * *alone[i].trust_ratio);
        }
      }
    }
  }
}

TEST(TensorNorms, ChangeNoBitOfTheTrainingAndAreInThePlan) {
  for (const auto& [layout, offload] : layouts()) {
    for (const UpdateRule* used : {&rule("sgd"), &rule("lamb")}) {
      SCOPED_TRACE(std::string(layout.name) + ", optimizer " + used->word);
      ReplicaOptions options = options_of(layout, used);
      options.offload = offload;
      options.deterministic = true;
      const parallel::Mesh mesh(layout.mesh, world());
      test::ReplicaFixture measured(options, 1, mesh);
      options.tensor_norms = false;
      test::ReplicaFixture plain(options, 1, mesh);
      for (int step = 0; step < 3; ++step) {
        run_step(measured, step != 1);
        run_step(plain, false);
      }
      for (test::ReplicaFixture* fixture : {&measured, &plain}) {
        fixture->evaluate(fixture->batch(0));
        fixture->engine.quiesce();
      }
      std::vector<float> with, without;
      test::append_values(measured.replica, measured.store().flat_master(), with);
      test::append_values(plain.replica, plain.store().flat_master(), without);
      test::expect_same_bits(with, without);
      EXPECT_EQ(measured.replica.peaks(), measured.plan);
      EXPECT_EQ(measured.plan.parameters, plain.plan.parameters);
      EXPECT_GT(measured.plan.optimizer, plain.plan.optimizer);
    }
  }
}

TEST(TensorNorms, ASkippedStepNamesTheLastTensorThatIsNotFinite) {
  for (const auto& [layout, offload] : layouts()) {
    SCOPED_TRACE(layout.name);
    ReplicaOptions options = options_of(layout, &rule("lamb"));
    options.offload = offload;
    const parallel::Mesh mesh(layout.mesh, world());
    test::ReplicaFixture fixture(options, 1, mesh);
    const auto& whole = fixture.replica.model().parameters().entries();
    optim::StepOutcome outcome;
    run_step(fixture, true, &outcome);
    EXPECT_TRUE(outcome.applied);
    EXPECT_EQ(outcome.nonfinite_tensor, -1);
    // Every rank that owns rows of two tensors makes one element of each infinite.
    const std::size_t places[] = {whole.size() - 2, whole.size() / 2};
    fixture.gradients(mesh.coordinates.data_rank * options.accumulation);
    for (const std::size_t place : places) {
      const int local = fixture.store().list().find(whole[place].spec.name);
      if (local < 0) continue;
      const parallel::ParameterShard::OwnedRows& rows = fixture.store().owned().owned_rows({local});
      if (rows.row_begin < rows.row_end)
        fixture.store().flat_gradient().as<float>()[rows.offset] =
            std::numeric_limits<float>::infinity();
    }
    fixture.optimizer().begin_update(fixture.replica.context(), {.learning_rate = rate}, {}, true);
    outcome = fixture.optimizer().end_update();
    fixture.store().start_gather(fixture.replica.context());
    EXPECT_FALSE(outcome.applied);
    EXPECT_EQ(outcome.nonfinite_tensor, static_cast<std::int32_t>(whole.size() - 2));
    const std::vector<TensorNorm> norms = fixture.optimizer().tensor_norms();
    for (std::size_t i = 0; i < norms.size(); ++i) {
      EXPECT_EQ(std::isfinite(norms[i].gradient), i != places[0] && i != places[1]) << i;
      EXPECT_EQ(norms[i].update, 0) << i;
    }
  }
}

}  // namespace
}  // namespace trireme::train
