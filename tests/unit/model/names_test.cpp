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
    const Model model(resnet(depth, ResnetStem::imagenet), {1, 224, 224, 3}, {1000});
    EXPECT_EQ(model.weight_count(), count) << "depth " << depth;
  }
}

TEST(Resnet, UsesTorchvisionsNamesAndShapes) {
  const auto all = shapes(Model(resnet(50, ResnetStem::imagenet), {1, 224, 224, 3}, {1000}));
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
    const Model model(resnet(depth, ResnetStem::small, 16), {1, 32, 32, 3}, {10});
    EXPECT_EQ(model.block_count(), 1 + (depth - 2) / 2) << "depth " << depth;
    const auto all = shapes(model);
    EXPECT_EQ(all.at("fc.weight"), (Shape{10, 64}));
    EXPECT_TRUE(all.contains("layer3.0.downsample.0.weight"));
    EXPECT_FALSE(all.contains("layer4.0.conv1.weight"));
  }
}

/// Everything of two and more dimensions but embeddings and heads.
TEST(Matrices, AreThoseOfHiddenLayers) {
  const std::set<std::string> tables{"cls_token",  "pos_embed",  "patch_embed.proj.weight",
                                     "wte.weight", "wpe.weight", "model.embed_tokens.weight"};
  // Patches and positions of the chain of tokens.
  const std::set<std::string> of_chain{"blocks.0.weight", "blocks.1.weight"};
  for (const test::SmallModel& small : test::small_models()) {
    const Model model(small.options, small.input, {small.classes});
    const int second = model.parameters().find("blocks.1.weight");
    const bool has_patches =
        second >= 0 && model.parameters()[{second}].shape.rank() > 1;  // else a norm
    for (const parallel::ParameterList::Entry& entry : model.parameters().entries()) {
      const bool is_matrix = entry.spec.shape.rank() > 1 && entry.block < model.block_count() &&
                             !tables.contains(entry.spec.name) &&
                             !(has_patches && of_chain.contains(entry.spec.name));
      EXPECT_EQ(entry.spec.form != parallel::MatrixForm::none, is_matrix) << entry.spec.name;
    }
  }
  const Model gpt(test::small_gpt2(), {3, 6}, {37});
  EXPECT_EQ(gpt.parameters()[{gpt.parameters().find("h.0.attn.c_attn.weight")}].form,
            parallel::MatrixForm::in_out);
}

// Counts of trained elements from timm's results of its vit_*_patch16_224 models.
TEST(Vit, HasTimmsNumberOfWeights) {
  const struct {
    std::int64_t layers, heads, width, count;
  } published[] = {{12, 3, 192, 5717416},
                   {12, 6, 384, 22050664},
                   {12, 12, 768, 86567656},
                   {24, 16, 1024, 304326632}};
  for (const auto& [layers, heads, width, count] : published) {
    const Model model(test::model_of(VitOptions{.layers = layers, .heads = heads, .width = width}),
                      {1, 224, 224, 3}, {1000});
    EXPECT_EQ(model.weight_count(), count) << "width " << width;
    EXPECT_EQ(model.block_count(), layers + 1);
  }
}

TEST(Vit, UsesTimmsNamesAndShapes) {
  const auto all = shapes(Model(test::model_of(VitOptions()), {1, 224, 112, 3}, {1000}));
  EXPECT_EQ(all.at("cls_token"), (Shape{1, 1, 768}));
  EXPECT_EQ(all.at("pos_embed"), (Shape{1, 1 + 14 * 7, 768}));
  EXPECT_EQ(all.at("patch_embed.proj.weight"), (Shape{768, 3, 16, 16}));
  EXPECT_EQ(all.at("patch_embed.proj.bias"), (Shape{768}));
  EXPECT_EQ(all.at("blocks.0.norm1.weight"), (Shape{768}));
  EXPECT_EQ(all.at("blocks.0.attn.qkv.weight"), (Shape{2304, 768}));
  EXPECT_EQ(all.at("blocks.11.attn.qkv.bias"), (Shape{2304}));
  EXPECT_EQ(all.at("blocks.11.attn.proj.weight"), (Shape{768, 768}));
  EXPECT_EQ(all.at("blocks.11.norm2.bias"), (Shape{768}));
  EXPECT_EQ(all.at("blocks.11.mlp.fc1.weight"), (Shape{3072, 768}));
  EXPECT_EQ(all.at("blocks.11.mlp.fc2.weight"), (Shape{768, 3072}));
  EXPECT_EQ(all.at("norm.weight"), (Shape{768}));
  EXPECT_EQ(all.at("head.weight"), (Shape{1000, 768}));
  EXPECT_EQ(all.at("head.bias"), (Shape{1000}));
  EXPECT_EQ(all.size(), 4u + 12 * 12 + 4);

  const auto mean = shapes(Model(
      test::model_of(VitOptions{.pool = VitPool::mean, .qkv_bias = false, .layer_scale = 1e-5}),
      {1, 32, 32, 3}, {10}));
  EXPECT_EQ(mean.at("blocks.0.ls1.gamma"), (Shape{768}));
  EXPECT_EQ(mean.at("blocks.11.ls2.gamma"), (Shape{768}));
  EXPECT_EQ(mean.at("pos_embed"), (Shape{1, 4, 768}));
  EXPECT_EQ(mean.at("fc_norm.weight"), (Shape{768}));
  EXPECT_FALSE(mean.contains("cls_token"));
  EXPECT_FALSE(mean.contains("norm.weight"));
  EXPECT_FALSE(mean.contains("blocks.0.attn.qkv.bias"));
}

TEST(Vit, DecaysMatricesOnly) {
  for (const VitPool pool : {VitPool::token, VitPool::mean}) {
    const Model model(test::small_vit(pool), {1, 8, 8, 1}, {5});
    for (const parallel::ParameterList::Entry& entry : model.parameters().entries()) {
      const std::string& name = entry.spec.name;
      const bool is_matrix = name.ends_with(".weight") && name.find("norm") == std::string::npos;
      EXPECT_EQ(entry.spec.decay, is_matrix) << name;
      EXPECT_EQ(entry.spec.trust, is_matrix) << name;
    }
  }
}

TEST(Vit, SplitsHeadsAndMlpOverATensorGroup) {
  const Model model(test::small_vit(), {2, 8, 8, 1}, {5}, {1, 2, true});
  const auto shape_of = [&](const char* name) {
    return model.parameters()
        .entries()[static_cast<std::size_t>(model.parameters().find(name))]
        .partition.shape();
  };
  EXPECT_EQ(shape_of("blocks.0.attn.qkv.weight"), (Shape{36, 24}));
  EXPECT_EQ(shape_of("blocks.0.attn.qkv.bias"), (Shape{36}));
  EXPECT_EQ(shape_of("blocks.0.attn.proj.weight"), (Shape{24, 12}));
  EXPECT_EQ(shape_of("blocks.0.mlp.fc1.weight"), (Shape{24, 24}));
  EXPECT_EQ(shape_of("pos_embed"), (Shape{1, 5, 24}));
  EXPECT_EQ(shape_of("head.weight"), (Shape{5, 24}));
  EXPECT_EQ(model.block_input_shape(1), (Shape{5, 24}));  // of 2 x 5 rows
}

TEST(Vit, RefusesImagesAndGroupsThatDoNotFit) {
  const auto message = [](const Shape& input, const TensorPlacement& placement) {
    try {
      const Model model(test::small_vit(), input, {5}, placement);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message({1, 12, 10, 1}, {}), HasSubstr("model.patch: 4 does not divide"));
  EXPECT_THAT(message({1, 12, 10, 1}, {}), HasSubstr("12 x 10"));
  EXPECT_THAT(message({1, 8, 8, 1}, {0, 2, true}), HasSubstr("use batch.micro = 2"));
  EXPECT_EQ(message({1, 8, 8, 1}, {0, 2, false}), "");
  EXPECT_THAT(message({1, 8, 8, 1}, {0, 3, false}), HasSubstr("model.heads"));
}

TEST(Resnet, RefusesADepthThatIsNone) {
  EXPECT_THROW(Model(resnet(19, ResnetStem::small), {1, 32, 32, 3}, {10}), InputError);
}

TEST(Mlp, RefusesMoreWeightsThanAnyMachineHolds) {
  // 2^40 weights in this matrix, and others besides
  ModelOptions options = test::mlp({1 << 20, 1 << 20});
  const auto refusal = [&](std::int64_t classes) -> std::string {
    try {
      Model(options, {1, 1, 1, 1}, {classes});
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
  const Model model(resnet(18, ResnetStem::small), {1, 28, 28, 1}, {10});
  for (const auto& entry : model.parameters().entries()) {
    EXPECT_EQ(entry.spec.decay, entry.spec.shape.rank() > 1) << entry.spec.name;
    EXPECT_EQ(entry.spec.trust, entry.spec.shape.rank() > 1) << entry.spec.name;
    const bool running = entry.spec.name.find("running_") != std::string::npos;
    EXPECT_EQ(entry.spec.role == parallel::Role::statistic, running) << entry.spec.name;
  }
}

TEST(Mlp, ChainsItsWidths) {
  const auto all = shapes(Model(test::mlp({100, 50}), {1, 28, 28, 1}, {10}));
  EXPECT_EQ(all.at("layers.0.weight"), (Shape{100, 784}));
  EXPECT_EQ(all.at("layers.1.weight"), (Shape{50, 100}));
  EXPECT_EQ(all.at("layers.2.weight"), (Shape{10, 50}));
  EXPECT_EQ(all.size(), 6u);
}

}  // namespace
}  // namespace trireme::model
