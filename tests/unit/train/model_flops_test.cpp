// SPDX-License-Identifier: Apache-2.0
//
// The FLOPs of a sample, against figures that are computed by hand.

#include "trireme/train/model_flops.hpp"

#include <gtest/gtest.h>

#include "support/replica.hpp"

namespace trireme::train {
namespace {

TEST(ModelFlops, OfAnMlpAreThreeProductsALayerButTwoOfTheFirst) {
  ReplicaOptions options = test::small_resnet();
  options.model = test::mlp({32, 16});
  // 64 pixels, 32, 16, 5 classes. Nobody needs the gradient of the pixels.
  const double weights[] = {64 * 32, 32 * 16, 16 * 5};
  EXPECT_EQ(model_flops_of_a_sample(options), 4 * weights[0] + 6 * (weights[1] + weights[2]));
}

TEST(ModelFlops, OfAGptAreSixAWeightAndTokenAndTheScoresThreeTimes) {
  const ReplicaOptions options = test::small_gpt(2, 16);
  constexpr double tokens = 8, width = 16, layers = 2, vocabulary = 37;
  // Query, key, value and output; the MLP of 4 x width; the head. Embeddings multiply nothing.
  constexpr double weights = layers * (4 + 8) * width * width + width * vocabulary;
  // Scores and their product with the values, of the pairs of tokens that causal attention has.
  constexpr double attention = layers * 2 * 2 * width * tokens * (tokens + 1) / 2;
  EXPECT_EQ(model_flops_of_a_sample(options), 6 * weights * tokens + 3 * attention);
}

/// timm's figure for a forward pass of vit_base_patch16_224 is 17.56 GMAC.
TEST(ModelFlops, OfViTBAreTimmsInAllPassesButTheGradientOfPixels) {
  ReplicaOptions options = test::small_resnet();
  options.model = test::model_of(model::VitOptions());
  options.image = {224, 224, 3};
  options.outputs.count = 1000;
  constexpr double width = 768, rows = 14 * 14 + 1, patches = rows * 16 * 16 * 3 * width;
  constexpr double blocks = 12 * rows * (4 + 8) * width * width,
                   scores = 12 * 2 * rows * rows * width;
  constexpr double forward = patches + blocks + scores + 1000 * width;
  EXPECT_NEAR(forward, 17.56e9, 5e-3 * 17.56e9);
  EXPECT_EQ(model_flops_of_a_sample(options), 6 * forward - 2 * patches);
}

TEST(ModelFlops, DoNotDependOnLayoutOrRecomputation) {
  for (const ReplicaOptions& plain : {test::small_resnet(18, 8), test::small_gpt(4)}) {
    ReplicaOptions options = plain;
    options.recompute = 1;
    options.shard = parallel::ShardKind::parameters;
    options.global = 32 * options.micro;
    options.accumulation = 8;
    options.pipeline_chunks = 2;
    options.pipeline_schedule = parallel::PipelineKind::interleaved;
    EXPECT_EQ(model_flops_of_a_sample(options), model_flops_of_a_sample(plain));
  }
}

}  // namespace
}  // namespace trireme::train
