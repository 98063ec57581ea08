// SPDX-License-Identifier: Apache-2.0
//
// Training with optimizer state or master weights in host memory has the bits of training without,
// at every layout.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "support/layout.hpp"
#include "support/mpi.hpp"
#include "support/training.hpp"

namespace trireme::train {
namespace {

using parallel::MeshShape;
using parallel::Offload;
using parallel::PipelineKind;
using parallel::ShardKind;
using test::Layout;

std::vector<Layout> layouts() {
  switch (test_environment().world().size()) {
    case 1: return {{"one", {}}, {"parameters", {}, ShardKind::parameters}};
    case 2:
      return {{"data", {2, 1, 1}},
              {"optimizer", {2, 1, 1}, ShardKind::optimizer},
              {"gradients", {2, 1, 1}, ShardKind::gradients},
              {"parameters", {2, 1, 1}, ShardKind::parameters},
              {"sequence", {1, 2, 1}, ShardKind::parameters, true},
              {"pipeline", {1, 1, 2}, ShardKind::parameters},
              {"interleaved",
               {1, 1, 2},
               ShardKind::parameters,
               false,
               0,
               PipelineKind::interleaved,
               2}};
    default:
      return {{"data", {4, 1, 1}, ShardKind::parameters},
              {"data tensor", {2, 2, 1}, ShardKind::gradients, true},
              {"data pipeline", {2, 1, 2}, ShardKind::parameters},
              {"tensor pipeline", {1, 2, 2}, ShardKind::none, true}};
  }
}

ReplicaOptions options_of(const Layout& layout) {
  ReplicaOptions options = test::small_gpt(4, layout);
  // Windows of 1024 elements, so that the larger tensors are cut.
  options.bucket_bytes = 4096;
  // Two runs of one layout then have the same bits.
  options.deterministic = true;
  return options;
}

std::vector<Offload> offloads(ShardKind kind) {
  if (kind != ShardKind::parameters) return {{.optimizer = true}};
  return {{.optimizer = true}, {.parameters = true}, {.optimizer = true, .parameters = true}};
}

TEST(StateOffload, LeavesEveryBitAtEveryLayout) {
  for (const Layout& layout : layouts()) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      for (const optim::UpdateRule* optimizer : {&optim::rule("adamw"), &optim::rule("lamb")}) {
        ReplicaOptions options = options_of(layout);
        options.compute = compute;
        options.optimizer.rule = optimizer;
        options.optimizer.ema = optimizer == &optim::rule("lamb") ? 0.9 : 0;
        const parallel::Mesh mesh(layout.mesh, test_environment().world());
        const test::TrainingResult plain = test::train_three_steps(options, mesh);
        for (const Offload& offload : offloads(layout.shard)) {
          SCOPED_TRACE(fmt::format("{}, {}, {}{}", layout.name, to_string(compute),
                                   offload.optimizer ? "optimizer " : "",
                                   offload.parameters ? "parameters" : ""));
          options.offload = offload;
          test::expect_same_bits(test::train_three_steps(options, mesh), plain);
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::train
