// SPDX-License-Identifier: Apache-2.0
//
// Training with activations in host memory has the bits of training without, at every layout of 1,
// 2 and 4 ranks.

#include <gtest/gtest.h>

#include "support/layout.hpp"
#include "support/mpi.hpp"
#include "support/training.hpp"

namespace trireme::train {
namespace {

using parallel::MeshShape;
using parallel::PipelineKind;
using parallel::ShardKind;
using test::Layout;

std::vector<Layout> layouts() {
  switch (test_environment().world().size()) {
    case 1: return {{"one", {}}};
    case 2:
      return {{"1f1b", {1, 1, 2}},
              {"1f1b, recomputed", {1, 1, 2}, ShardKind::none, false, 2},
              {"gpipe", {1, 1, 2}, ShardKind::none, false, 0, PipelineKind::gpipe},
              {"interleaved", {1, 1, 2}, ShardKind::none, false, 0, PipelineKind::interleaved, 2},
              {"interleaved, recomputed",
               {1, 1, 2},
               ShardKind::none,
               false,
               1,
               PipelineKind::interleaved,
               2},
              {"sequence", {1, 2, 1}, ShardKind::none, true},
              {"parameters", {2, 1, 1}, ShardKind::parameters, false, 2}};
    default:
      return {
          {"1f1b", {1, 1, 4}},
          {"interleaved", {1, 1, 4}, ShardKind::none, false, 0, PipelineKind::interleaved, 2},
          {"gpipe, parameters", {2, 1, 2}, ShardKind::parameters, false, 0, PipelineKind::gpipe},
          {"interleaved, tensor",
           {1, 2, 2},
           ShardKind::none,
           true,
           2,
           PipelineKind::interleaved,
           2}};
  }
}

ReplicaOptions options_of(const Layout& layout) {
  ReplicaOptions options = test::small_gpt(8, layout);
  // Two runs of one layout then have the same bits.
  options.deterministic = true;
  return options;
}

void expect_the_same_training(ReplicaOptions options, const MeshShape& shape) {
  const parallel::Mesh mesh(shape, test_environment().world());
  const test::TrainingResult plain = test::train_three_steps(options, mesh);
  options.offload.activations = true;
  test::expect_same_bits(test::train_three_steps(options, mesh), plain);
  if (options.shard != ShardKind::parameters) return;
  options.offload = {.optimizer = true, .parameters = true, .activations = true};
  test::expect_same_bits(test::train_three_steps(options, mesh), plain);
}

TEST(ActivationOffload, LeavesEveryBitAtEveryLayout) {
  for (const Layout& layout : layouts()) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      SCOPED_TRACE(layout.name);
      ReplicaOptions options = options_of(layout);
      options.compute = compute;
      expect_the_same_training(options, layout.mesh);
    }
  }
}

/// MPI sends messages of this size only when they are received. By then the offload windows of the
/// sender contain other blocks.
TEST(ActivationOffload, LeavesLargeMessagesToTheirReceivers) {
  if (test_environment().world().size() != 2) GTEST_SKIP() << "a pipeline of 2 stages";
  for (const auto& [kind, chunks] :
       {std::pair{PipelineKind::gpipe, 1}, {PipelineKind::interleaved, 2}}) {
    ReplicaOptions options = options_of({"", {1, 1, 2}, ShardKind::none, false, 0, kind, chunks});
    options.model.as<model::TransformerOptions>().layers = 4;
    options.model.as<model::TransformerOptions>().context = 256;
    options.micro = 8;
    options.accumulation = 4;
    options.global = 32;
    ASSERT_EQ(options.micro * options.model.as<model::TransformerOptions>().context *
                  options.model.as<model::TransformerOptions>().width * 4,
              128 << 10);
    expect_the_same_training(options, {1, 1, 2});
  }
}

}  // namespace
}  // namespace trireme::train
