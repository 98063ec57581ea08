// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "replica.hpp"
#include "update_rules.hpp"

namespace trireme::test {

/// Results of a few training steps, for comparison bit by bit.
struct TrainingResult {
  std::vector<double> losses, norms;                ///< one for each step
  std::vector<float> master, optimizer_state, ema;  ///< the partition of this rank
  train::Sums evaluated;
};

/// Appends the values of a float tensor, in device or host memory.
inline void append_values(train::Replica& replica, const Tensor& from, std::vector<float>& to) {
  const std::size_t before = to.size();
  to.resize(before + static_cast<std::size_t>(from.elements()));
  // A tensor in host memory may be the destination of a copy that is still running.
  synchronize(replica.context().stream());
  copy_bytes(replica.context().stream(), to.data() + before, from.data,
             static_cast<std::size_t>(from.bytes()));
}

/// Trains three steps on three different sets of micro-batches, and evaluates after the first and
/// the last (with averaged weights, if there are any). Checks that the memory plan equals the
/// memory used.
inline TrainingResult train_three_steps(
    const train::ReplicaOptions& options,
    const parallel::Mesh& mesh = parallel::Mesh({}, comm::Communicator()), Device device = {}) {
  ReplicaFixture fixture(options, 1, mesh, device);
  TrainingResult result;
  for (std::int64_t step = 0; step < 3; ++step) {
    result.norms.push_back(fixture.step(
        0.01, (step * mesh.shape.data + mesh.coordinates.data_rank) * options.accumulation));
    double loss = 0;
    for (const train::Sums& sums : fixture.micro_batch_sums()) loss += sums.loss;
    result.losses.push_back(loss);
    if (step == 1) continue;
    fixture.replica.weight_update().swap_ema();
    result.evaluated = fixture.evaluate(fixture.batch(0));
    fixture.replica.weight_update().swap_ema();
  }
  fixture.engine.quiesce();
  append_values(fixture.replica, fixture.store().flat_master(), result.master);
  for (const parallel::StateEntry& slot : slots_of(fixture.optimizer()))
    append_values(fixture.replica, slot.flat, result.optimizer_state);
  if (const Tensor ema = fixture.optimizer().ema(); ema.defined())
    append_values(fixture.replica, ema, result.ema);
  EXPECT_EQ(fixture.replica.peaks(), fixture.plan);
  return result;
}

inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Compares everything except evaluations and averages.
inline void expect_same_training(const TrainingResult& a, const TrainingResult& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  expect_same_bits(a.master, b.master);
  expect_same_bits(a.optimizer_state, b.optimizer_state);
}

inline void expect_same_bits(const TrainingResult& a, const TrainingResult& b) {
  expect_same_training(a, b);
  EXPECT_EQ(a.evaluated.loss, b.evaluated.loss);
  expect_same_bits(a.ema, b.ema);
}

}  // namespace trireme::test
