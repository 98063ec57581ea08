// SPDX-License-Identifier: Apache-2.0
//
// Tests Replica::measure (train/step/replica.hpp): the bytes planned on the meta device are the
// bytes that a run allocates, for every precision, recomputation and sharding.
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include <gtest/gtest.h>
#include <omp.h>

#include "ops/cpu/winograd/winograd_kernel.hpp"
#include "support/replica.hpp"
#include "support/scratch.hpp"
#include "trireme/checkpoint/background.hpp"
#include "trireme/train/run/run_state.hpp"

namespace trireme::train {
namespace {

void expect_exact(const ReplicaOptions& options) {
  test::ReplicaFixture fixture(options);
  for (int step = 0; step < 2; ++step) {
    fixture.step(0.01);
  }
  fixture.evaluate(fixture.batch(0));
  const MemoryPlan used = fixture.replica.peaks();
  EXPECT_EQ(used.parameters, fixture.plan.parameters);
  EXPECT_EQ(used.gradients, fixture.plan.gradients);
  EXPECT_EQ(used.optimizer, fixture.plan.optimizer);
  EXPECT_EQ(used.activations, fixture.plan.activations);
  EXPECT_EQ(used.ping_pong[0], fixture.plan.ping_pong[0]);
  EXPECT_EQ(used.ping_pong[1], fixture.plan.ping_pong[1]);
  EXPECT_EQ(used.workspace, fixture.plan.workspace);
  EXPECT_EQ(used.prepared_weights, fixture.plan.prepared_weights);
  EXPECT_EQ(used.recompute, fixture.plan.recompute);
  EXPECT_EQ(used.batches, fixture.plan.batches);
  EXPECT_EQ(used, fixture.plan);
  EXPECT_GT(used.all_activations(), 0);
}

TEST(MemoryPlan, EqualsTheMemoryOfARun) { expect_exact(test::small_resnet()); }

TEST(MemoryPlan, IsExactInBfloat16WithAccumulationAndTheTree) {
  ReplicaOptions options = test::small_resnet(18, 8);
  options.compute = DType::bfloat16;
  options.accumulation = 3;
  options.global = 30;
  options.deterministic = true;
  expect_exact(options);
}

TEST(MemoryPlan, IsExactInFloat16WhoseProductsAreWidened) {
  ReplicaOptions options = test::small_resnet(18, 8);
  options.compute = DType::float16;
  options.loss_scale.emplace();
  options.accumulation = 2;
  options.global = 20;
  expect_exact(options);
}

TEST(MemoryPlan, IsExactForThePooledStemGroupNormAndAdamW) {
  ReplicaOptions options = test::small_resnet(50, 4);
  options.model.as<model::ResnetOptions>().stem = model::ResnetStem::imagenet;
  options.model.as<model::ResnetOptions>().norm = model::ImageNormKind::group;
  options.optimizer.rule = &optim::rule("adamw");
  options.image = {33, 31, 3};
  expect_exact(options);
}

TEST(MemoryPlan, IsExactForChains) {
  for (const model::ModelOptions& model :
       {test::chain_of_convolutions("batch"), test::chain_of_convolutions("group"),
        test::chain_of_tokens()}) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      for (const int recompute : {0, 1}) {
        ReplicaOptions options = test::small_resnet();
        options.model = model;
        options.compute = compute;
        options.recompute = recompute;
        options.accumulation = 2;
        options.global = 20;
        expect_exact(options);
      }
    }
  }
}

TEST(MemoryPlan, IsExactForMatricesThatAnUpdateOrthogonalizes) {
  for (const DType type : {DType::float32, DType::bfloat16}) {
    ReplicaOptions options = test::small_gpt();
    options.optimizer.rule = &optim::rule("muon");
    options.optimizer.newton_schulz = type;
    // A short sequence, so that the matrices need most of the workspace.
    options.model.as<model::TransformerOptions>().context = 2;
    options.micro = options.accumulation = options.global = 1;
    expect_exact(options);
  }
}

bool uses_winograd_for_64_tiles() {
  return ops::cpu::is_winograd_wide() && omp_get_max_threads() <= 64 / 8;  // tiles for each thread
}

// Transformed weights are 4 times as large. The 16 images have 4 tiles each, enough for the layers
// of the first stage on up to 8 threads (ops/cpu/winograd/winograd.hpp).
TEST(MemoryPlan, IsExactForConvolutionsByWinogradsAlgorithm) {
  ReplicaOptions options = test::small_resnet(8, 32);
  options.micro = 16;
  options.accumulation = 2;
  options.global = 32;
  options.optimizer.ema = 0.999;
  options.optimizer.groups = {{.match = "layer1.0.conv2*", .frozen = true}};
  for (const parallel::ShardKind shard :
       {parallel::ShardKind::none, parallel::ShardKind::parameters}) {
    options.shard = shard;
    options.fusions = true;
    expect_exact(options);
    const MemoryPlan plan = Replica::measure(options, {}, 0, DeviceKind::cpu);
    options.fusions = false;
    expect_exact(options);
    const MemoryPlan plain = Replica::measure(options, {}, 0, DeviceKind::cpu);
    // Two 3x3 layers of 32 channels in two directions; the copies of oneDNN are not larger than
    // the weights.
    const std::int64_t more = 2 * 2 * (36 - 9) * 32 * 32 * std::int64_t{sizeof(float)};
    if (uses_winograd_for_64_tiles())
      EXPECT_GE(plan.prepared_weights - plain.prepared_weights, more);
    else
      EXPECT_EQ(plan, plain);
  }
}

// Layers share the workspace for their prepared forms, which are up to 4 times as large as weights.
TEST(MemoryPlan, KeepsPreparedConvolutionsOnlyIfTheyAreUsedAgain) {
  ReplicaOptions options = test::small_resnet(8, 32);
  options.micro = 16;
  options.global = 32;
  options.accumulation = 2;
  const MemoryPlan kept = Replica::measure(options, {}, 0, DeviceKind::cpu);
  options.global = 16;
  options.accumulation = 1;
  expect_exact(options);
  const MemoryPlan plan = Replica::measure(options, {}, 0, DeviceKind::cpu);
  EXPECT_EQ(plan.prepared_weights, 0);
  // The largest layer has 3x3 filters of 128 channels.
  const std::int64_t largest = 9 * 128 * 128 * std::int64_t{sizeof(float)};
  EXPECT_GT(kept.prepared_weights, 0);
  EXPECT_LE(plan.workspace, kept.workspace + largest);

  options.optimizer.groups = {{.match = "layer1.0.conv2*", .frozen = true}};
  expect_exact(options);
  const MemoryPlan frozen = Replica::measure(options, {}, 0, DeviceKind::cpu);
  if (uses_winograd_for_64_tiles()) {
    EXPECT_EQ(frozen.prepared_weights, 2 * 36 * 32 * 32 * std::int64_t{sizeof(float)});
  }
  options.optimizer.groups.clear();
  options.trains = false;
  EXPECT_GT(Replica::measure(options, {}, 0, DeviceKind::cpu).prepared_weights, 0);
}

// Products in float16 read the weight in float32, a prepared form on every CPU. The head keeps its
// forms, since it uses them for several parts of the rows.
TEST(MemoryPlan, KeepsPreparedProductsOfBlocksOnlyIfTheyAreUsedAgain) {
  constexpr std::int64_t width = 64;
  const auto options_of = [](std::int64_t layers) {
    ReplicaOptions options = test::small_gpt(layers, width);
    options.compute = DType::float16;
    options.loss_scale.emplace();
    return options;
  };
  // Returns the bytes of prepared weights that two further layers take.
  const auto two_layers = [&](auto change, const parallel::MeshShape& mesh = {}) {
    const auto bytes_of = [&](std::int64_t layers) {
      ReplicaOptions options = options_of(layers);
      change(options);
      return Replica::measure(options, mesh, 0, DeviceKind::cpu).prepared_weights;
    };
    return bytes_of(4) - bytes_of(2);
  };
  const std::int64_t weights = 2 * 12 * width * width * std::int64_t{sizeof(float)};
  EXPECT_EQ(two_layers([](ReplicaOptions&) {}), 0);
  expect_exact(options_of(2));
  // Llama's form, whose weights of q, k and v are joined.
  ReplicaOptions llama = options_of(2);
  llama.model.as<model::TransformerOptions>().positions = model::PositionKind::rope;
  llama.recompute = 1;
  expect_exact(llama);
  const auto accumulates = [](ReplicaOptions& options) {
    options.accumulation = 2;
    options.global = 4;
  };
  EXPECT_GE(two_layers(accumulates), weights);
  EXPECT_GE(two_layers([](ReplicaOptions& options) { options.trains = false; }), weights);
  EXPECT_GE(two_layers([](ReplicaOptions& options) {
              options.optimizer.groups = {{.match = "h.*", .frozen = true}};
            }),
            weights);
  EXPECT_GE(two_layers([](ReplicaOptions&) {}, {.tensor = 2}), weights / 2);
}

// Small vectors and the tables of the optimizer remain.
TEST(MemoryPlan, HasNoGradientsAndNoOptimizerStateWithoutTraining) {
  ReplicaOptions options = test::small_gpt(2, 64);
  options.optimizer.rule = &optim::rule("adamw");
  for (const parallel::ShardKind shard :
       {parallel::ShardKind::none, parallel::ShardKind::parameters}) {
    options.shard = shard;
    options.trains = true;
    const MemoryPlan training = Replica::measure(options, {.data = 2}, 0, DeviceKind::cpu);
    options.trains = false;
    const MemoryPlan plan = Replica::measure(options, {.data = 2}, 0, DeviceKind::cpu);
    EXPECT_LT(plan.gradients, training.gradients / 10);
    EXPECT_LT(plan.optimizer, training.optimizer / 10);
    EXPECT_LE(plan.parameters, training.parameters);
  }
}

TEST(MemoryPlan, IsExactWithFrozenWeightsAndStochasticDepth) {
  for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const model::ImageNormKind norm :
         {model::ImageNormKind::batch, model::ImageNormKind::group}) {
      ReplicaOptions options = test::small_resnet(18, 8);
      options.compute = compute;
      options.model.as<model::ResnetOptions>().norm = norm;
      options.model.as<model::ResnetOptions>().drop_path = 0.3;
      const MemoryPlan whole = test::ReplicaFixture(options).plan;
      options.optimizer.groups = {{.match = "fc.*"}, {.match = "*", .frozen = true}};
      expect_exact(options);
      // Gradients and momentum of less than a tenth of the weights are left.
      const MemoryPlan frozen = test::ReplicaFixture(options).plan;
      EXPECT_LT(frozen.gradients, whole.gradients / 10);
      EXPECT_LT(frozen.optimizer, whole.optimizer / 10);
      EXPECT_EQ(frozen.activations, whole.activations);
    }
  }
  ReplicaOptions options = test::small_gpt(3);
  options.model.as<model::TransformerOptions>().drop_path = 0.3;
  options.optimizer.groups = {{.match = "h.0.*", .frozen = true},
                              {.match = "*.ln*", .frozen = true}};
  options.recompute = 1;
  expect_exact(options);
}

TEST(MemoryPlan, IsExactForATransformerWithRecomputation) {
  for (const int recompute : {0, 1, 2}) {
    for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
      ReplicaOptions options = test::small_gpt(3);
      options.recompute = recompute;
      options.compute = compute;
      options.accumulation = 2;
      options.global = 4;
      expect_exact(options);
    }
  }
}

TEST(MemoryPlan, IsExactWithJoinedNorms) {
  for (const int recompute : {0, 1}) {
    ReplicaOptions options = test::small_resnet(18, 8);
    options.compute = DType::bfloat16;
    options.recompute = recompute;
    options.joined_norms = true;
    expect_exact(options);
  }
}

TEST(MemoryPlan, IsExactWithTheFusedSoftmax) {
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    ReplicaOptions options = test::small_gpt(3);
    options.compute = compute;
    options.fused_softmax = true;
    expect_exact(options);
  }
}

ReplicaOptions small_gpt_in_float8() {
  ReplicaOptions options = test::small_gpt(3);
  options.compute = DType::bfloat16;
  options.float8 = true;
  options.accumulation = 2;
  options.global = 4;
  return options;
}

TEST(MemoryPlan, IsExactInFloat8) {
  for (const parallel::ShardKind shard :
       {parallel::ShardKind::none, parallel::ShardKind::parameters}) {
    ReplicaOptions options = small_gpt_in_float8();
    options.shard = shard;
    expect_exact(options);
  }
}

TEST(MemoryPlan, CodesOfFloat8WeightsAreKeptOnAGpuWhereTheWeightsAre) {
  ReplicaOptions options = small_gpt_in_float8();
  options.global = 8;
  options.model.as<model::TransformerOptions>().vocabulary = options.outputs.count =
      48;  // A multiple of 16, but the head is not a float8 layer.
  const parallel::MeshShape two{.data = 2};
  const std::int64_t layer = 16 * 16 * (3 + 1 + 4 + 4), scales = 4 * Arena::alignment;
  EXPECT_EQ(Replica::measure(options, two, 0, DeviceKind::cuda).prepared_weights,
            3 * 2 * (layer + scales));  // Two layouts (transposed and not), one byte per number.
  ReplicaOptions one_micro_batch = options;
  one_micro_batch.accumulation = 1;
  one_micro_batch.global = 4;
  EXPECT_EQ(Replica::measure(one_micro_batch, two, 0, DeviceKind::cuda).prepared_weights, 0);
  options.shard = parallel::ShardKind::parameters;
  EXPECT_EQ(Replica::measure(options, two, 0, DeviceKind::cuda).prepared_weights, 0);
  options.float8 = false;
  options.shard = parallel::ShardKind::none;
  EXPECT_EQ(Replica::measure(options, two, 0, DeviceKind::cuda).prepared_weights, 0);
}

TEST(MemoryPlan, TheAverageIsOneSlotMore) {
  ReplicaOptions options = test::small_gpt(3);
  const MemoryPlan plain = Replica::measure(options, {}, 0, DeviceKind::cpu);
  options.optimizer.ema = 0.999;
  expect_exact(options);
  MemoryPlan averaged = Replica::measure(options, {}, 0, DeviceKind::cpu);
  EXPECT_EQ(2 * averaged.optimizer, 3 * plain.optimizer);  // AdamW has two slots.
  averaged.optimizer = plain.optimizer;
  EXPECT_EQ(averaged, plain);
}

TEST(MemoryPlan, RecomputationKeepsTheInputsAndOneBlocksActivations) {
  ReplicaOptions options = test::small_gpt(8, 32);
  const MemoryPlan plain = Replica::measure(options, {}, 0, DeviceKind::cpu);
  options.recompute = 1;
  const MemoryPlan again = Replica::measure(options, {}, 0, DeviceKind::cpu);
  const std::int64_t input = options.micro * options.model.as<model::TransformerOptions>().context *
                             options.model.as<model::TransformerOptions>().width *
                             4;  // Bytes of a block's input in float32.
  const std::int64_t tokens =
      options.micro * options.model.as<model::TransformerOptions>().context * 4;
  EXPECT_EQ(again.activations.front(),
            tokens + 9 * input);  // The outputs of the embedding and of 8 blocks.
  EXPECT_LT(again.recompute, plain.activations.front() / 7);  // Activations of the largest block.
}

TEST(MemoryPlan, ShardedParametersLeaveAnEighthToEachOfEightRanks) {
  ReplicaOptions options = test::small_gpt(8, 64);
  options.model.as<model::TransformerOptions>().tie_embeddings = false;
  options.global = 16;
  const MemoryPlan plain = Replica::measure(options, {.data = 8}, 3, DeviceKind::cpu);
  options.shard = parallel::ShardKind::parameters;
  const MemoryPlan sharded = Replica::measure(options, {.data = 8}, 3, DeviceKind::cpu);
  // In float32 master and working weights are one tensor.
  const std::int64_t weights = plain.parameters;
  // Bytes of a transformer block, with room for alignment.
  const std::int64_t block = 4 * (12 * 64 * 64 + 13 * 64) + 16 * 64;
  // Own parameter shards, two gathered blocks, uneven cuts.
  EXPECT_LE(sharded.parameters, weights / 8 + 2 * block + 8 * 1024);
  // Two blocks that backward writes to, and the part that is added.
  EXPECT_LE(sharded.gradients, weights / 8 + 3 * block + 8 * 1024);
  EXPECT_LE(sharded.optimizer, 2 * weights / 8 + 16 * 1024);  // Two slots.
  EXPECT_EQ(plain.optimizer, 2 * weights);
  EXPECT_GT(plain.prepared_weights, 0);
  EXPECT_EQ(sharded.prepared_weights,
            0);  // Prepared weights are dropped with the gathered weights.
}

TEST(MemoryPlan, CountsTheLevelsOfTheTree) {
  ReplicaOptions options = test::small_resnet();
  options.accumulation = 8;
  options.global = 240;
  const MemoryPlan plain = Replica::measure(options, {.data = 3}, 0, DeviceKind::cpu);
  options.deterministic = true;
  const MemoryPlan tree = Replica::measure(options, {.data = 3}, 0, DeviceKind::cpu);
  // 1 + ceil(log2 8) buffers and the partner's part instead of one buffer.
  EXPECT_EQ(tree.gradients, plain.gradients * 5);
  EXPECT_EQ(tree.activations, plain.activations);
}

TEST(MemoryPlan, ASmallModelOnTheCpuIsAddedUpByTheTreeInAnyCase) {
  ReplicaOptions options = test::small_resnet();
  options.accumulation = 8;
  for (const int replicas : {1, 2, 4}) {
    options.global = 80 * replicas;
    options.deterministic = false;
    const MemoryPlan plain = Replica::measure(options, {.data = replicas}, 0, DeviceKind::cpu);
    options.deterministic = true;
    EXPECT_EQ(plain, Replica::measure(options, {.data = replicas}, 0, DeviceKind::cpu));
  }
}

/// Runs steps and a background checkpoint, and compares used with planned memory.
void expect_exact_with_a_checkpoint(ReplicaOptions options, std::int64_t groups) {
  options.async_checkpoints = true;
  const test::ScratchFolder folder;
  test::ReplicaFixture fixture(options);
  for (int step = 0; step < 2; ++step) fixture.step(0.01);
  fixture.reducer().complete_pending(fixture.replica.context());
  const std::vector<checkpoint::TensorSlice> pieces = slices_of(fixture.replica, Rows::share, true);
  checkpoint::BackgroundWrite(fixture.mesh.world, folder / "a.h5", pieces, {},
                              fixture.replica.state_copy())
      .finish();
  fixture.evaluate(fixture.batch(0));
  EXPECT_EQ(fixture.replica.peaks(), fixture.plan);
  EXPECT_GE(fixture.plan.host_checkpoint, groups * fixture.replica.model().weight_count() * 4);
  EXPECT_EQ(fixture.plan.host_total(), fixture.plan.host_checkpoint);
}

TEST(MemoryPlan, CountsTheCopyOfACheckpointThatAThreadWrites) {
  expect_exact_with_a_checkpoint(test::small_resnet(), 2);  // Weights, momentum.
  expect_exact_with_a_checkpoint(test::small_gpt(), 3);     // Weights, two slots.
  ReplicaOptions delayed = test::small_gpt();
  delayed.sync = parallel::SyncKind::delayed;
  expect_exact_with_a_checkpoint(delayed, 4);  // Also the pending gradient.
}

TEST(MemoryPlan, TheCopiesOfAllRanksAreTheStateOnce) {
  ReplicaOptions options = test::small_gpt(3, 64);
  options.global = 8;
  options.async_checkpoints = true;
  const std::int64_t staging =
      std::int64_t{4} << 20;  // The staging buffer, through which blocks of the file are read back.
  const auto copies = [&](const parallel::MeshShape& shape) {
    std::int64_t bytes = 0;
    for (int rank = 0; rank < shape.data * shape.tensor * shape.pipeline; ++rank)
      bytes += Replica::measure(options, shape, rank, DeviceKind::cpu).host_checkpoint - staging;
    return bytes;
  };
  const std::int64_t alone = copies({});
  for (const parallel::ShardKind shard : {parallel::ShardKind::none, parallel::ShardKind::optimizer,
                                          parallel::ShardKind::parameters}) {
    options.shard = shard;
    for (const parallel::MeshShape& shape :
         {parallel::MeshShape{.data = 4}, parallel::MeshShape{.data = 2, .tensor = 2},
          parallel::MeshShape{.tensor = 2, .pipeline = 2}}) {
      EXPECT_NEAR(static_cast<double>(copies(shape)), static_cast<double>(alone),
                  4 * 2 * Arena::alignment);  // Two tensors per rank, each rounded up.
    }
  }
}

/// The work of one step, by op.
struct Work {
  std::map<std::string, double> bytes;
  double flops = 0;
};

Work work_of(const ReplicaOptions& options, DeviceKind target) {
  Work work;
  Replica::measure(options, {}, 0, target, {.op = [&](const ops::OpCall& call) {
                     work.bytes[std::string(call.op.name)] += call.bytes;
                     work.flops += call.flops;
                   }});
  return work;
}

/// The libraries of a GPU are fast for 8 channels in 16 bits, but images have 3.
TEST(MemoryPlan, ImagesHaveEightChannelsOnAGpuInSixteenBits) {
  ReplicaOptions options = test::small_resnet(18, 8);
  options.image = {32, 32, 3};
  const double pixels = 32.0 * 32 * 10;  // of a micro-batch
  for (const auto& [dtype, target, channels] : {std::tuple(DType::float32, DeviceKind::cpu, 3),
                                                {DType::float32, DeviceKind::cuda, 3},
                                                {DType::bfloat16, DeviceKind::cpu, 3},
                                                {DType::bfloat16, DeviceKind::cuda, 8},
                                                {DType::float16, DeviceKind::cuda, 8}}) {
    options.compute = dtype;
    options.loss_scale.reset();
    if (dtype == DType::float16) options.loss_scale.emplace();
    const Work work = work_of(options, target);
    EXPECT_EQ(work.bytes.at("prepare_images"),
              pixels * (3 + channels * static_cast<double>(size_of(dtype))))
        << to_string(dtype) << " " << static_cast<int>(target);
    EXPECT_EQ(work.flops, work_of(options, DeviceKind::cpu).flops);
  }
}

}  // namespace
}  // namespace trireme::train
