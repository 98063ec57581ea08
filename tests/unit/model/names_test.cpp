// SPDX-License-Identifier: Apache-2.0
//
// Names, shapes and weight counts of image models, and validation of their extents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "shapes.hpp"
#include "support/models.hpp"
#include "trireme/base/check.hpp"
#include "trireme/model/model.hpp"

namespace trireme::model {
namespace {

using testing::HasSubstr;

ModelOptions resnet(int depth, ResnetStem stem, std::int64_t width = 64) {
  return test::model_of(ResnetOptions{.depth = depth, .width = width, .stem = stem});
}

// Counts of trained elements from torchvision's documentation of its ImageNet models.
TEST(Resnet, HasTorchvisionsNumberOfWeights) {
  const std::map<int, std::int64_t> published = {
      {18, 11689512}, {34, 21797672}, {50, 25557032}, {101, 44549160}, {152, 60192808}};
  for (const auto& [depth, count] : published) {
    const Model model(resnet(depth, ResnetStem::imagenet), {1, 224, 224, 3}, 1000);
    EXPECT_EQ(model.weight_count(), count) << "depth " << depth;
  }
}

TEST(Resnet, UsesTorchvisionsNamesAndShapes) {
  const auto all = shapes(Model(resnet(50, ResnetStem::imagenet), {1, 224, 224, 3}, 1000));
  EXPECT_EQ(all.at("conv1.weight"), (Shape{64, 3, 7, 7}));
  EXPECT_EQ(all.at("bn1.running_var"), (Shape{64}));
  EXPECT_EQ(all.at("layer1.0.conv3.weight"), (Shape{256, 64, 1, 1}));
  EXPECT_EQ(all.at("layer1.0.downsample.0.weight"), (Shape{256, 64, 1, 1}));
  EXPECT_EQ(all.at("layer1.0.downsample.1.bias"), (Shape{256}));
  EXPECT_EQ(all.at("layer4.2.conv2.weight"), (Shape{512, 512, 3, 3}));
  EXPECT_EQ(all.at("fc.weight"), (Shape{1000, 2048}));
  EXPECT_EQ(all.at("fc.bias"), (Shape{1000}));
  EXPECT_FALSE(all.contains("layer1.1.downsample.0.weight"));
}

TEST(Resnet, HasTheCifarFormAtItsDepths) {
  for (const int depth : {8, 14, 20, 32, 44, 56}) {
    const Model model(resnet(depth, ResnetStem::small, 16), {1, 32, 32, 3}, 10);
    EXPECT_EQ(model.block_count(), 1 + (depth - 2) / 2) << "depth " << depth;
    const auto all = shapes(model);
    EXPECT_EQ(all.at("fc.weight"), (Shape{10, 64}));
    EXPECT_TRUE(all.contains("layer3.0.downsample.0.weight"));
    EXPECT_FALSE(all.contains("layer4.0.conv1.weight"));
  }
}

TEST(Resnet, RefusesADepthThatIsNone) {
  EXPECT_THROW(Model(resnet(19, ResnetStem::small), {1, 32, 32, 3}, 10), InputError);
}

TEST(Mlp, RefusesMoreWeightsThanAnyMachineHolds) {
  // 2^40 weights in this matrix, and others besides
  ModelOptions options = test::mlp({1 << 20, 1 << 20});
  const auto refusal = [&](std::int64_t classes) -> std::string {
    try {
      Model(options, {1, 1, 1, 1}, classes);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(10), HasSubstr("use smaller model.widths"));
  options = test::mlp({4096});
  EXPECT_EQ(refusal(10), "");
  EXPECT_THAT(refusal(1 << 30), HasSubstr("1073741824 classes"));
}

TEST(Resnet, DecaysAndTrustsOnlyTensorsOfTwoDimensionsAndMore) {
  const Model model(resnet(18, ResnetStem::small), {1, 28, 28, 1}, 10);
  for (const auto& entry : model.parameters().entries()) {
    EXPECT_EQ(entry.spec.decay, entry.spec.shape.rank() > 1) << entry.spec.name;
    EXPECT_EQ(entry.spec.trust, entry.spec.shape.rank() > 1) << entry.spec.name;
    const bool running = entry.spec.name.find("running_") != std::string::npos;
    EXPECT_EQ(entry.spec.role == parallel::Role::statistic, running) << entry.spec.name;
  }
}

TEST(Mlp, ChainsItsWidths) {
  const auto all = shapes(Model(test::mlp({100, 50}), {1, 28, 28, 1}, 10));
  EXPECT_EQ(all.at("layers.0.weight"), (Shape{100, 784}));
  EXPECT_EQ(all.at("layers.1.weight"), (Shape{50, 100}));
  EXPECT_EQ(all.at("layers.2.weight"), (Shape{10, 50}));
  EXPECT_EQ(all.size(), 6u);
}

}  // namespace
}  // namespace trireme::model
