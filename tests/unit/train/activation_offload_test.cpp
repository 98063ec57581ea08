// SPDX-License-Identifier: Apache-2.0
//
// Tests activation offload: the same bits as without it, two blocks on the device, exact memory
// plans.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/training.hpp"

namespace trireme::train {
namespace {

ReplicaOptions offloaded(ReplicaOptions options) {
  options.offload.activations = true;
  return options;
}

/// Compares training with and without offload at every precision, number of micro-batches and
/// recomputation.
void expect_the_same_training(ReplicaOptions options, const char* what) {
  for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const std::int64_t accumulation : {1, 3}) {
      for (const int recompute : {0, 1, 2}) {
        SCOPED_TRACE(fmt::format("{}, {}, {} micro-batches, recompute {}", what, to_string(compute),
                                 accumulation, recompute));
        options.compute = compute;
        options.accumulation = accumulation;
        options.global = accumulation * options.micro;
        options.recompute = recompute;
        const test::TrainingResult plain = test::train_three_steps(options);
        test::expect_same_bits(test::train_three_steps(offloaded(options)), plain);
        EXPECT_NE(plain.losses[0], plain.losses[2]);
        EXPECT_GT(Replica::measure(offloaded(options), {}, 0, DeviceKind::cpu).host_activations, 0);
      }
    }
  }
}

TEST(ActivationOffload, LeavesEveryBitOfAResidualNetwork) {
  expect_the_same_training(test::small_resnet(14), "batch norm");
  ReplicaOptions options = test::small_resnet(18, 4);
  options.model.as<model::ResnetOptions>().stem = model::ResnetStem::imagenet;
  options.model.as<model::ResnetOptions>().norm = model::ImageNormKind::group;
  options.image = {17, 15, 3};
  expect_the_same_training(options, "group norm and pooled stem");
}

TEST(ActivationOffload, LeavesEveryBitOfATransformer) {
  ReplicaOptions options = test::small_gpt(4);
  ASSERT_GT(options.model.as<model::TransformerOptions>().dropout, 0);
  expect_the_same_training(options, "gpt2");
  test::make_llama(options.model);
  expect_the_same_training(options, "llama");
}

TEST(ActivationOffload, LeavesEveryBitOfShortChains) {
  for (const std::vector<std::int64_t>& widths :
       {std::vector<std::int64_t>{}, {7}, {7, 5}, {7, 5, 3}}) {
    ReplicaOptions options = test::small_resnet();
    options.model = test::mlp(widths);
    SCOPED_TRACE(widths.size());
    test::expect_same_bits(test::train_three_steps(offloaded(options)),
                           test::train_three_steps(options));
  }
}

/// Bytes that a block of small_gpt saves in float32, counted by hand: R rows of C channels. Every
/// tensor is a multiple of 64 bytes.
struct Counted {
  explicit Counted(const ReplicaOptions& options) {
    const std::int64_t rows = options.micro * options.model.as<model::TransformerOptions>().context,
                       width = options.model.as<model::TransformerOptions>().width;
    const std::int64_t norm =
        rows * width + 2 * rows;  // The output, and mean and deviation of each row.
    const std::int64_t attention = 3 * rows * width + rows * width +
                                   rows * options.model.as<model::TransformerOptions>().heads;
    const std::int64_t mlp = 2 * rows * options.model.as<model::TransformerOptions>().mlp_width;
    boundary = 4 * rows * width;
    block = 4 * (2 * norm + attention + mlp) + 2 * boundary;
    tokens = 4 * rows;
  }
  std::int64_t boundary, block, tokens;
};

TEST(ActivationOffload, LeavesTheDeviceTwoBlocksWhateverTheirNumber) {
  for (const std::int64_t layers : {2, 3, 8, 16}) {
    const ReplicaOptions options = test::small_gpt(layers);
    const Counted bytes(options);
    const MemoryPlan plain = Replica::measure(options, {}, 0, DeviceKind::cpu),
                     plan = Replica::measure(offloaded(options), {}, 0, DeviceKind::cpu);
    EXPECT_EQ(plain.activations,
              (std::vector<std::int64_t>{bytes.tokens + bytes.boundary + layers * bytes.block}));
    EXPECT_EQ(plan.activations, (std::vector<std::int64_t>{0}));
    EXPECT_EQ(plan.offload_windows[0], bytes.block);
    EXPECT_EQ(plan.offload_windows[1], bytes.block);
    EXPECT_EQ(plan.host_activations,
              bytes.tokens + bytes.boundary +
                  (layers - 2) * bytes.block);  // The last two blocks stay in the windows.
    EXPECT_EQ(plan.total() - 2 * bytes.block, plain.total() - plain.activations[0]);
    EXPECT_EQ(plan.host_total(), plan.host_activations);
    EXPECT_EQ(plain.host_total(), 0);
  }
}

TEST(ActivationOffload, RecomputedBlocksSendTheirInputsAlone) {
  ReplicaOptions options = test::small_gpt(8);
  const Counted bytes(options);
  options.recompute = 1;
  const MemoryPlan plan = Replica::measure(offloaded(options), {}, 0, DeviceKind::cpu);
  EXPECT_EQ(plan.offload_windows[0], bytes.boundary);
  EXPECT_EQ(plan.offload_windows[1], bytes.boundary);
  EXPECT_EQ(plan.host_activations, bytes.tokens + 7 * bytes.boundary);
  EXPECT_EQ(plan.recompute, Replica::measure(options, {}, 0, DeviceKind::cpu).recompute);
}

/// All micro-batches of gpipe are in flight at once: each has its own host memory, and a buffer on
/// the device for the output that it sends.
TEST(ActivationOffload, TheWindowsServeAllMicroBatchesInFlight) {
  // Four layers per stage; the embedding counts as no work.
  ReplicaOptions options = test::small_gpt(8);
  options.accumulation = 6;
  options.global = 12;
  options.pipeline_schedule = parallel::PipelineKind::gpipe;
  const Counted bytes(options);
  // Bytes of one micro-batch, by stage.
  const std::int64_t kept[] = {bytes.tokens + bytes.boundary + 4 * bytes.block,
                               bytes.boundary + 4 * bytes.block};
  for (const int stage : {0, 1}) {
    const MemoryPlan plain = Replica::measure(options, {.pipeline = 2}, stage, DeviceKind::cpu);
    const MemoryPlan plan =
        Replica::measure(offloaded(options), {.pipeline = 2}, stage, DeviceKind::cpu);
    EXPECT_EQ(plain.activations, std::vector<std::int64_t>(6, kept[stage]));
    EXPECT_EQ(plan.activations, std::vector<std::int64_t>(6, stage == 0 ? bytes.boundary : 0));
    EXPECT_EQ(plan.offload_windows[0], bytes.block);
    EXPECT_EQ(plan.offload_windows[1], bytes.block);
    EXPECT_EQ(plan.host_activations, 6 * kept[stage]);
  }
}

TEST(ActivationOffload, TakesNothingWhereNothingIsTrained) {
  ReplicaOptions options = offloaded(test::small_gpt());
  options.trains = false;
  const MemoryPlan plan = Replica::measure(options, {}, 0, DeviceKind::cpu);
  EXPECT_EQ(plan.offload_windows[0] + plan.offload_windows[1] + plan.host_total(), 0);
}

}  // namespace
}  // namespace trireme::train
