// SPDX-License-Identifier: Apache-2.0
//
// Training steps on the emulated device: the bits of the CPU, and the memory that is planned.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "support/training.hpp"

namespace trireme::train {
namespace {

constexpr Device emulated{DeviceKind::emulated, 0};

/// test::trained also checks that the planned memory equals the allocated memory.
void expect_the_same_as_on_the_cpu(const ReplicaOptions& options, const std::string& what) {
  SCOPED_TRACE(what);
  test::expect_same_bits(
      test::train_three_steps(options, parallel::Mesh({}, comm::Communicator()), emulated),
      test::train_three_steps(options));
}

ReplicaOptions accumulating(ReplicaOptions options) {
  options.accumulation = 2;
  options.global = 2 * options.micro;
  options.optimizer.clip_norm = 1;
  options.optimizer.ema = 0.9;
  options.deterministic = true;  // Otherwise micro-batches are added in another order on devices.
  return options;
}

TEST(EmulatedDevice, GivesTheBitsOfTheCpuInTheMemoryPlanned) {
  for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
    ReplicaOptions chain = test::small_resnet();
    chain.model = test::chain_of_convolutions("group");
    for (ReplicaOptions options : {accumulating(test::small_resnet()), accumulating(chain),
                                   accumulating(test::small_gpt())}) {
      options.compute = compute;
      if (compute == DType::float16)
        options.loss_scale = {.initial = 256, .interval = 1};  // The scale grows in every step.
      expect_the_same_as_on_the_cpu(options, to_string(compute));
    }
  }
}

/// Returns options that erase and mix images.
ReplicaOptions mixing(ReplicaOptions options) {
  options.augment.erase = {.probability = 0.5};
  options.augment.mixing = {.mixup = 0.4, .cutmix = 1};
  return options;
}

TEST(EmulatedDevice, GivesTheBitsOfTheCpuWithMixedImages) {
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    ReplicaOptions options = mixing(accumulating(test::small_resnet()));
    options.compute = compute;
    options.loss.label_smoothing = 0.1;
    expect_the_same_as_on_the_cpu(options, to_string(compute));
    EXPECT_NE(test::train_three_steps(options).losses,
              test::train_three_steps(accumulating(test::small_resnet())).losses);
  }
}

/// The loss of an evaluation is plain, whatever the transforms of the batch say.
TEST(Evaluation, IsNotMixed) {
  test::ReplicaFixture mixed(mixing(test::small_resnet())), plain(test::small_resnet());
  const Sums expected = plain.evaluate(plain.batch(0)), found = mixed.evaluate(mixed.batch(0));
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.top1, expected.top1);
  EXPECT_NE(mixed.gradients(), plain.gradients());
}

TEST(EmulatedDevice, EqualsTheCpuWithRecomputationAndShardsOfOneRank) {
  ReplicaOptions options = accumulating(test::small_gpt());
  options.recompute = 1;
  options.optimizer.rule = &optim::rule("lamb");
  expect_the_same_as_on_the_cpu(options, "recomputation");
  options.shard = parallel::ShardKind::parameters;
  options.bucket_bytes = 4096;
  expect_the_same_as_on_the_cpu(options, "sharded parameters");
}

TEST(EmulatedDevice, GivesTheBitsOfTheCpuWithStateInHostMemory) {
  for (ReplicaOptions options :
       {accumulating(test::small_resnet()), accumulating(test::small_gpt(3))}) {
    options.bucket_bytes = 4096;
    options.offload.activations = true;
    expect_the_same_as_on_the_cpu(options, "activations");
    options.offload.optimizer = true;
    expect_the_same_as_on_the_cpu(options, "slots");
    options.shard = parallel::ShardKind::parameters;
    options.offload.parameters = true;
    expect_the_same_as_on_the_cpu(options, "masters");
  }
}

/// A device with its own memory needs a buffer for inputs, and one more for labels. On the CPU
/// kernels read the loader's memory.
TEST(EmulatedDevice, HasMemoryForTheInputsOfOneMicroBatchAndTheLabelsOfOneMore) {
  const ReplicaOptions images = test::small_resnet(), tokens = test::small_gpt();
  const auto more = [](const ReplicaOptions& options) {
    return Replica::measure(options, {}, 0, DeviceKind::emulated).batches -
           Replica::measure(options, {}, 0, DeviceKind::cpu).batches;
  };
  const auto taken = [](std::int64_t bytes) {
    return (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
  };
  const auto kept = [&](const ReplicaOptions& options) {
    return taken(options.micro * options.labels_per_sample() * 4) + taken(options.micro * 8) +
           (options.augment.mixing.is_on() ? taken(options.micro * 4) : 0);
  };
  for (const ReplicaOptions& options : {images, mixing(images)})
    EXPECT_EQ(more(options),
              kept(options) + taken(options.input_shape().elements()) +
                  taken(options.micro * static_cast<std::int64_t>(sizeof(ops::ImageTransform))));
  EXPECT_EQ(more(tokens), kept(tokens) + taken(tokens.input_shape().elements() * 4));
}

}  // namespace
}  // namespace trireme::train
