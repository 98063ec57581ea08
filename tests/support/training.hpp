#pragma once

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "support/replica.hpp"

namespace trireme::test {

/// What a few steps leave behind, bit for bit.
struct Trained {
  std::vector<double> losses, norms;  ///< by step
  std::vector<float> master, slots;   ///< this rank's own
  train::Sums evaluated;
};

/// Three steps over three different sets of micro-batches, an evaluation between them and one at the end. Holds that the plan is what they took.
inline Trained trained(const train::ReplicaOptions& options, const parallel::Mesh& mesh = parallel::Mesh({}, comm::Communicator())) {
  ReplicaFixture fixture(options, 1, mesh);
  Trained result;
  for (std::int64_t step = 0; step < 3; ++step) {
    result.norms.push_back(fixture.step(0.01, (step * mesh.shape.data + mesh.place.data_rank) * options.accumulation));
    double loss = 0;
    for (const train::Sums& sums : fixture.replica.micro_batch_sums()) loss += sums.loss;
    result.losses.push_back(loss);
    if (step != 1) result.evaluated = fixture.replica.evaluate(fixture.batch(0));
  }
  fixture.engine.quiesce();
  const Tensor& master = fixture.replica.store().flat_master();
  result.master.assign(master.as<float>(), master.as<float>() + master.elements());
  for (const optim::Optimizer::Slot& slot : fixture.replica.optimizer().slots()) {
    result.slots.insert(result.slots.end(), slot.flat.as<float>(), slot.flat.as<float>() + slot.flat.elements());
  }
  EXPECT_EQ(fixture.replica.peaks(), fixture.plan);
  return result;
}

inline void expect_same_bits(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.evaluated.loss, b.evaluated.loss);
  ASSERT_EQ(a.master.size(), b.master.size());
  EXPECT_EQ(std::memcmp(a.master.data(), b.master.data(), a.master.size() * sizeof(float)), 0);
  ASSERT_EQ(a.slots.size(), b.slots.size());
  EXPECT_EQ(std::memcmp(a.slots.data(), b.slots.data(), a.slots.size() * sizeof(float)), 0);
}

}  // namespace trireme::test
