// SPDX-License-Identifier: Apache-2.0
//
// Names, shapes, splits and initial values of a transformer's tensors, and validation of its
// extents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "shapes.hpp"
#include "support/models.hpp"
#include "trireme/base/check.hpp"
#include "trireme/model/model.hpp"

namespace trireme::model {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

ModelOptions gpt2_small() {
  return test::model_of(TransformerOptions{.layers = 12,
                                           .heads = 12,
                                           .width = 768,
                                           .context = 1024,
                                           .kv_heads = 12,
                                           .mlp_width = 3072,
                                           .vocabulary = 50257});
}

ModelOptions small_llama() {
  return test::model_of(TransformerOptions{.layers = 2,
                                           .heads = 8,
                                           .width = 64,
                                           .context = 32,
                                           .kv_heads = 4,
                                           .mlp_width = 176,
                                           .vocabulary = 1000,
                                           .mlp = MlpKind::swiglu,
                                           .norm = NormKind::rms,
                                           .positions = PositionKind::rope,
                                           .bias = false,
                                           .tie_embeddings = false});
}

Model make(const ModelOptions& options, const TensorPlacement& placement = {},
           std::int64_t batch = 2) {
  return Model(options, {batch, options.as<TransformerOptions>().context},
               {options.as<TransformerOptions>().vocabulary}, placement);
}

const parallel::ParameterList::Entry& entry(const Model& model, const std::string& name) {
  const int index = model.parameters().find(name);
  EXPECT_GE(index, 0) << name;
  return model.parameters().entries()[static_cast<std::size_t>(index)];
}

// The published model has 124M trained elements.
TEST(Gpt, HasGpt2sNumberOfWeights) {
  const Model model = make(gpt2_small());
  EXPECT_EQ(model.weight_count(), 124439808);
  EXPECT_EQ(model.block_count(), 13);
}

// TinyLlama 1.1B (Zhang et al. 2024): 22 layers of width 2048, 32 heads, 4 key/value heads, mlp
// 5632, 32000 tokens, untied head.
TEST(Gpt, HasTinyLlamasNumberOfWeights) {
  ModelOptions options = small_llama();
  options.as<TransformerOptions>().layers = 22;
  options.as<TransformerOptions>().heads = 32;
  options.as<TransformerOptions>().kv_heads = 4;
  options.as<TransformerOptions>().width = 2048;
  options.as<TransformerOptions>().mlp_width = 5632;
  options.as<TransformerOptions>().vocabulary = 32000;
  const Model model = make(options);
  EXPECT_EQ(model.weight_count(), 1100048384);
}

TEST(Gpt, UsesGpt2sNamesAndShapes) {
  const auto all = shapes(make(gpt2_small()));
  EXPECT_EQ(all.size(), 2u + 12 * 12 + 2);
  EXPECT_EQ(all.at("wte.weight"), (Shape{50257, 768}));
  EXPECT_EQ(all.at("wpe.weight"), (Shape{1024, 768}));
  EXPECT_EQ(all.at("h.0.ln_1.weight"), (Shape{768}));
  EXPECT_EQ(all.at("h.0.ln_1.bias"), (Shape{768}));
  EXPECT_EQ(all.at("h.0.attn.c_attn.weight"), (Shape{768, 2304}));
  EXPECT_EQ(all.at("h.0.attn.c_attn.bias"), (Shape{2304}));
  EXPECT_EQ(all.at("h.0.attn.c_proj.weight"), (Shape{768, 768}));
  EXPECT_EQ(all.at("h.0.attn.c_proj.bias"), (Shape{768}));
  EXPECT_EQ(all.at("h.11.ln_2.bias"), (Shape{768}));
  EXPECT_EQ(all.at("h.11.mlp.c_fc.weight"), (Shape{768, 3072}));
  EXPECT_EQ(all.at("h.11.mlp.c_fc.bias"), (Shape{3072}));
  EXPECT_EQ(all.at("h.11.mlp.c_proj.weight"), (Shape{3072, 768}));
  EXPECT_EQ(all.at("h.11.mlp.c_proj.bias"), (Shape{768}));
  EXPECT_EQ(all.at("ln_f.weight"), (Shape{768}));
  EXPECT_EQ(all.at("ln_f.bias"), (Shape{768}));
  EXPECT_FALSE(all.contains("lm_head.weight"));
}

TEST(Gpt, UsesLlamasNamesAndShapes) {
  const auto all = shapes(make(small_llama()));
  EXPECT_EQ(all.size(), 1u + 2 * 9 + 2);
  EXPECT_EQ(all.at("model.embed_tokens.weight"), (Shape{1000, 64}));
  EXPECT_EQ(all.at("model.layers.0.input_layernorm.weight"), (Shape{64}));
  EXPECT_EQ(all.at("model.layers.0.self_attn.q_proj.weight"), (Shape{64, 64}));
  EXPECT_EQ(all.at("model.layers.0.self_attn.k_proj.weight"), (Shape{32, 64}));
  EXPECT_EQ(all.at("model.layers.0.self_attn.v_proj.weight"), (Shape{32, 64}));
  EXPECT_EQ(all.at("model.layers.1.self_attn.o_proj.weight"), (Shape{64, 64}));
  EXPECT_EQ(all.at("model.layers.1.post_attention_layernorm.weight"), (Shape{64}));
  EXPECT_EQ(all.at("model.layers.1.mlp.gate_proj.weight"), (Shape{176, 64}));
  EXPECT_EQ(all.at("model.layers.1.mlp.up_proj.weight"), (Shape{176, 64}));
  EXPECT_EQ(all.at("model.layers.1.mlp.down_proj.weight"), (Shape{64, 176}));
  EXPECT_EQ(all.at("model.norm.weight"), (Shape{64}));
  EXPECT_EQ(all.at("lm_head.weight"), (Shape{1000, 64}));
}

TEST(Gpt, NamesFormsThatNeitherLibraryHas) {
  ModelOptions gpt2 = gpt2_small(), llama = small_llama();
  gpt2.as<TransformerOptions>().mlp = MlpKind::swiglu;
  gpt2.as<TransformerOptions>().tie_embeddings = false;
  gpt2.as<TransformerOptions>().kv_heads = 4;
  gpt2.as<TransformerOptions>().bias = false;
  const auto one = shapes(make(gpt2));
  EXPECT_EQ(one.at("h.0.mlp.c_fc.weight"), (Shape{768, 6144}));
  EXPECT_EQ(one.at("h.0.attn.c_attn.weight"), (Shape{768, 768 + 2 * 256}));
  EXPECT_EQ(one.at("lm_head.weight"), (Shape{50257, 768}));
  EXPECT_EQ(one.at("h.0.ln_1.bias"), (Shape{768}));
  EXPECT_FALSE(one.contains("h.0.mlp.c_fc.bias"));
  llama.as<TransformerOptions>().mlp = MlpKind::gelu;
  llama.as<TransformerOptions>().norm = NormKind::layer;
  llama.as<TransformerOptions>().bias = true;
  const auto two = shapes(make(llama));
  EXPECT_FALSE(two.contains("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_EQ(two.at("model.layers.0.mlp.up_proj.bias"), (Shape{176}));
  EXPECT_EQ(two.at("model.layers.0.self_attn.k_proj.bias"), (Shape{32}));
  EXPECT_EQ(two.at("model.layers.0.input_layernorm.bias"), (Shape{64}));
}

TEST(Gpt, StartsAsGpt2DoesAndDecaysMatrices) {
  for (const Model& model : {make(gpt2_small()), make(small_llama())}) {
    const double layers = model.block_count() - 1;
    for (const auto& [spec, block, part] : model.parameters().entries()) {
      const bool matrix = spec.shape.rank() > 1;
      EXPECT_EQ(spec.decay, matrix) << spec.name;
      EXPECT_EQ(spec.trust, matrix) << spec.name;
      EXPECT_EQ(spec.compute_copy, matrix) << spec.name;
      EXPECT_EQ(spec.initializer.kind, matrix ? parallel::Initializer::Kind::normal
                                              : parallel::Initializer::Kind::constant)
          << spec.name;
      const bool residual = spec.name.ends_with("c_proj.weight") ||
                            spec.name.ends_with("o_proj.weight") ||
                            spec.name.ends_with("down_proj.weight");
      const double start = matrix ? (residual ? 0.02 / std::sqrt(2 * layers) : 0.02)
                                  : (spec.name.ends_with(".bias") ? 0 : 1);
      EXPECT_DOUBLE_EQ(spec.initializer.value, start) << spec.name;
    }
  }
}

TEST(Gpt, SplitsItsTensorsOverTheTensorGroup) {
  const Model gpt2 = make(gpt2_small(), {.tensor_rank = 1, .tensor_size = 4});
  EXPECT_EQ(entry(gpt2, "h.0.attn.c_attn.weight").partition.shape(), (Shape{768, 576}));
  ASSERT_EQ(entry(gpt2, "h.0.attn.c_attn.weight").partition.segments().size(),
            3u);  // one each for q, k and v
  EXPECT_EQ(entry(gpt2, "h.0.attn.c_attn.weight").partition.segments()[2].file, 2 * 768 + 192);
  EXPECT_EQ(entry(gpt2, "h.0.attn.c_attn.bias").partition.shape(), (Shape{576}));
  EXPECT_EQ(entry(gpt2, "h.0.attn.c_proj.weight").partition.shape(), (Shape{192, 768}));
  EXPECT_EQ(entry(gpt2, "h.0.mlp.c_fc.weight").partition.shape(), (Shape{768, 768}));
  EXPECT_EQ(entry(gpt2, "h.0.mlp.c_proj.weight").partition.shape(), (Shape{768, 768}));
  EXPECT_EQ(entry(gpt2, "wte.weight").partition.rows(), 50257 * 2 / 4 - 50257 / 4);
  for (const char* whole : {"h.0.ln_1.weight", "h.0.attn.c_proj.bias", "h.0.mlp.c_proj.bias",
                            "wpe.weight", "ln_f.bias"}) {
    EXPECT_TRUE(entry(gpt2, whole).partition.replicated()) << whole;
  }
  const Model llama = make(small_llama(), {.tensor_rank = 3, .tensor_size = 4});
  EXPECT_EQ(entry(llama, "model.layers.0.self_attn.q_proj.weight").partition.shape(),
            (Shape{16, 64}));
  EXPECT_EQ(entry(llama, "model.layers.0.self_attn.v_proj.weight").partition.shape(),
            (Shape{8, 64}));
  EXPECT_EQ(entry(llama, "model.layers.0.self_attn.o_proj.weight").partition.shape(),
            (Shape{64, 16}));
  EXPECT_EQ(entry(llama, "model.layers.0.mlp.down_proj.weight").partition.shape(), (Shape{64, 44}));
  EXPECT_EQ(entry(llama, "lm_head.weight").partition.row_begin(), 750);
  // With sequence parallelism only the norms see a part of the rows.
  for (const auto& [spec, block, part] : gpt2.parameters().entries())
    EXPECT_EQ(spec.partial_gradient == parallel::PartialGradient::of_held_rows,
              spec.name.find("ln_") != std::string::npos)
        << spec.name;
}

TEST(Gpt, BoundariesAreRowsHeld) {
  const ModelOptions options = small_llama();
  EXPECT_EQ(make(options).block_input_shape(0), (Shape{2, 32}));
  EXPECT_EQ(make(options, {.tensor_size = 4}).block_input_shape(1), (Shape{64, 64}));
  EXPECT_EQ(make(options, {.tensor_size = 4, .sequence_parallel = true}).block_input_shape(3),
            (Shape{16, 64}));
}

TEST(Gpt, AStageDeclaresItsChunksAlone) {
  const Model model = make(gpt2_small());
  parallel::ParameterList first, last;
  model.declare(first, 0, 2);
  model.declare(first, 7, 9);  // an interleaved stage
  model.declare(last, 13, 14);
  EXPECT_EQ(first.entries().size(), 2u + 3 * 12);
  EXPECT_EQ(first.entries().back().block, 8);
  ASSERT_EQ(last.entries().size(), 3u);
  EXPECT_EQ(last.entries().back().spec.name, "wte.weight");
  EXPECT_TRUE(last.entries().back().spec.tied);
  EXPECT_EQ(last.entries().back().block, 13);
}

std::string refusal(const ModelOptions& options, const TensorPlacement& placement = {},
                    std::int64_t batch = 2) {
  try {
    make(options, placement, batch);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Gpt, RefusesExtentsThatDoNotFitAndNamesTheNearest) {
  const auto expect = [](const std::string& message, const std::string& key,
                         const std::string& remedy) {
    EXPECT_THAT(message, HasSubstr(key));
    EXPECT_THAT(message, HasSubstr(remedy));
  };
  ModelOptions options = gpt2_small();
  options.as<TransformerOptions>().width = 770;
  expect(refusal(options), "model.width = 770", "768 or 780");
  options = small_llama();
  options.as<TransformerOptions>().kv_heads = 3;
  expect(refusal(options), "model.kv_heads: 3 does not divide", "use 2 or 4");
  options = small_llama();
  options.as<TransformerOptions>().width = 72;
  expect(refusal(options), "is odd", "64 or 80");
  options = gpt2_small();
  expect(refusal(options, {.tensor_size = 8}), "model.heads = 12", "use 6 or 12");
  options = small_llama();
  expect(refusal(options, {.tensor_size = 8}), "model.kv_heads = 4", "use 4");
  options.as<TransformerOptions>().mlp_width = 178;
  expect(refusal(options, {.tensor_size = 4}), "model.mlp_width = 178", "use 2");
  options = small_llama();
  options.as<TransformerOptions>().context = 31;
  expect(refusal(options, {.tensor_size = 4, .sequence_parallel = true}), "batch.micro = 2",
         "use batch.micro = 4");
  EXPECT_EQ(refusal(options, {.tensor_size = 4}), "");
  options.as<TransformerOptions>().vocabulary = 3;
  expect(refusal(options, {.tensor_size = 4}), "model.vocabulary = 3", "use tensor = 2");
}

TEST(Resnet, IsNotSplitOverTensorRanks) {
  EXPECT_THAT(
      [&] { Model({}, {1, 32, 32, 3}, {10}, {.tensor_size = 2}); },
      ThrowsMessage<InputError>(HasSubstr("use tensor = 1 with more data ranks or stages")));
}

}  // namespace
}  // namespace trireme::model
