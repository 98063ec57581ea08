// SPDX-License-Identifier: Apache-2.0
//
// A group of weights with an update rule of its own: in the memory plan, in checkpoints, after a
// restart from one, and with offloaded state. tests/mpi/sharding_test.cpp has the sharded layouts.

#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "support/training.hpp"
#include "trireme/train/run/run_state.hpp"

namespace trireme::train {
namespace {

/// The weights of the first block have the second rule.
ReplicaOptions two_rules(const char* own, const char* other) {
  ReplicaOptions options = test::small_gpt();
  options.optimizer = test::options_of(own);
  options.optimizer.ema = 0.9;
  options.optimizer.groups = {{.match = "h.0.*.weight", .rule = &optim::rule(other)}};
  return options;
}

/// Returns the slots of each weight in a checkpoint.
std::map<std::string, std::set<std::string>> slots_in_checkpoint(Replica& replica) {
  std::map<std::string, std::set<std::string>> slots;
  for (const checkpoint::TensorSlice& slice : slices_of(replica, Rows::owned, true))
    if (slice.path.starts_with("optimizer/"))
      slots[slice.spec->name].insert(slice.path.substr(0, slice.path.find('/', 10)));
  return slots;
}

TEST(TwoRules, ACheckpointHoldsTheSlotsOfEachWeightsRule) {
  const std::set<std::string> momentum{"optimizer/momentum"},
      moments{"optimizer/exp_avg", "optimizer/exp_avg_sq"};
  test::ReplicaFixture fixture(two_rules("adamw", "sgd"));
  const auto slots = slots_in_checkpoint(fixture.replica);
  EXPECT_EQ(slots.at("wte.weight"), moments);
  EXPECT_EQ(slots.at("h.0.attn.c_attn.bias"), moments);
  EXPECT_EQ(slots.at("h.0.attn.c_attn.weight"), momentum);
  EXPECT_EQ(slots.at("h.0.ln_1.weight"), momentum);
}

TEST(TwoRules, AreInTheMemoryPlanAndChangeNoBitOffloaded) {
  for (const auto& [own, other] : {std::pair("adamw", "sgd"), {"lars", "lamb"}}) {
    const ReplicaOptions options = two_rules(own, other);
    ReplicaOptions offloaded = options;
    offloaded.offload = {.optimizer = true, .parameters = true};
    offloaded.bucket_bytes = 4096;  // Tensors of both rules are in one window, and cut.
    // It compares used with planned memory.
    const test::TrainingResult whole = test::train_three_steps(options),
                               away = test::train_three_steps(offloaded);
    EXPECT_EQ(away.losses, whole.losses);
    EXPECT_EQ(away.norms, whole.norms);
  }
}

TEST(TwoRules, ARestartContinuesWithEqualBits) {
  for (const auto& [own, other] :
       {std::pair("adamw", "sgd"), {"sgd", "adamw"}, {"lars", "lamb"}, {"muon", "sgd"}}) {
    const test::ScratchFolder folder;
    test::ReplicaFixture before(two_rules(own, other)), after(two_rules(own, other));
    for (int step = 0; step < 2; ++step) before.step(0.01);
    checkpoint::write(before.mesh.world, folder / "a.h5",
                      slices_of(before.replica, Rows::share, true), {});
    checkpoint::read(after.mesh.world, folder / "a.h5",
                     slices_of(after.replica, Rows::owned, true));
    after.optimizer().set_updates(before.optimizer().updates());
    after.replica.weight_update().refresh_working();
    EXPECT_EQ(after.step(0.01), before.step(0.01)) << "norm of the gradient";
    std::vector<float> expected, found;
    test::append_values(before.replica, before.store().flat_master(), expected);
    test::append_values(after.replica, after.store().flat_master(), found);
    EXPECT_EQ(found, expected) << own << ", " << other;
  }
}

}  // namespace
}  // namespace trireme::train
