// SPDX-License-Identifier: Apache-2.0
//
// Import and export of safetensors files. Round trips keep every bit. Files that do not fit the
// model are rejected with the names of their tensors.
#include "trireme/checkpoint/weights/import_export.hpp"

#include <algorithm>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "example.hpp"
#include "support/verify_checkpoint.hpp"
#include "trireme/base/check.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/checkpoint/weights/safetensors.hpp"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

/// A small model and a safetensors file with its tensors.
struct ImportExportFixture : testing::Test {
  ScratchFolder folder;
  std::string file = folder / "weights.safetensors", out = folder / "imported.h5";
  parallel::ParameterList expected;
  std::vector<SafetensorsTensor> tensors;

  void SetUp() override {
    declare("conv1.weight", {4, 3, 2, 2}, parallel::Role::weight,
            parallel::InnerOrder::channels_last);
    declare("bn1.running_mean", {4}, parallel::Role::statistic, parallel::InnerOrder::plain);
    declare("fc.weight", {5, 4}, parallel::Role::weight, parallel::InnerOrder::plain);
  }
  void declare(const std::string& name, const Shape& shape, parallel::Role role,
               parallel::InnerOrder inner, bool tied = false) {
    parallel::ParameterSpec spec;
    spec.tied = tied;
    spec.name = name;
    spec.shape = shape;
    spec.role = role;
    spec.inner = inner;
    expected.declare(spec);
    SafetensorsTensor tensor{name, shape, {}};
    for (std::int64_t i = 0; i < shape.elements(); ++i)
      tensor.values.push_back(static_cast<float>(i) + static_cast<float>(tensors.size()) / 8);
    tensors.push_back(tensor);
  }
  /// Writes the file, imports it and returns the error message; "" if the import succeeds.
  std::string refusal() {
    write_safetensors(file, tensors, {});
    try {
      import_weights(WeightFiles(file), expected, {}, out);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(ImportExportFixture, TheWriterOfAFileIsNoPartOfItsDigest) {
  write_safetensors(file, tensors, {});
  std::vector<std::uint64_t> digests;
  for (const char* writer : {"", "trireme 7.8.9; source revision: abc", "trireme 8.0.0"}) {
    Info info;
    info.written_by = writer;
    import_weights(WeightFiles(file), expected, info, out);
    const Contents contents = read_contents(out);
    EXPECT_EQ(contents.info.written_by, writer);  // Empty: no attribute, as in older files.
    digests.push_back(combined_digest(contents.tensors));
  }
  EXPECT_EQ(digests, std::vector(3, digests.front()));
}

TEST_F(ImportExportFixture, ImportAndExportGiveTheSameTensors) {
  tensors.push_back({"bn1.num_batches_tracked", {1}, {9}});
  write_safetensors(file, tensors, {});
  Info info;
  info.deck = "[run]\n";
  info.written_by = "trireme 7.8.9";
  import_weights(WeightFiles(file), expected, info, out);
  EXPECT_EQ(verify_checkpoint(out), "");
  const Contents contents = read_contents(out);
  EXPECT_EQ(contents.info.step, 0);
  EXPECT_EQ(contents.info.deck, "[run]\n");
  EXPECT_EQ(contents.info.written_by, "trireme 7.8.9");
  ASSERT_EQ(contents.tensors.size(), 3u);
  EXPECT_EQ(contents.tensors[0].path, "buffers/bn1.running_mean");
  EXPECT_EQ(contents.tensors[1].path, "model/conv1.weight");
  EXPECT_EQ(contents.tensors[1].shape, (Shape{4, 3, 2, 2}));

  export_safetensors(out, folder / "exported.safetensors");
  const SafetensorsReader reader(folder / "exported.safetensors");
  ASSERT_EQ(reader.entries().size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(reader.entries().at(tensors[i].name).shape, tensors[i].shape);
    EXPECT_EQ(reader.read_float32(tensors[i].name), tensors[i].values);
  }
}

TEST_F(ImportExportFixture, TheAverageIsExportedWhereItIsAskedFor) {
  ExampleModel example;
  const std::size_t tensors_of_model = 4;
  for (std::size_t i = 0; i < tensors_of_model; ++i) {
    const parallel::ParameterSpec spec = example.specs[i];
    example.add("ema", spec.name, spec.shape, spec.inner);
  }
  const auto exported = [&](Weights weights) {
    write(comm::Communicator(), out, example.slices(), example_info());
    export_safetensors(out, folder / "exported.safetensors", weights);
    const SafetensorsReader reader(folder / "exported.safetensors");
    EXPECT_EQ(reader.entries().size(), tensors_of_model);
    return reader.read_float32("fc.bias");
  };
  EXPECT_EQ(exported(Weights::model), example.values[2]);
  EXPECT_EQ(exported(Weights::ema), example.values[7]);
  EXPECT_EQ(exported(Weights::evaluated), example.values[7]);

  example.paths.resize(5);
  example.specs.resize(5);
  EXPECT_EQ(exported(Weights::evaluated), example.values[2]) << "there is no average";
  EXPECT_THAT([&] { exported(Weights::ema); },
              ThrowsMessage<InputError>(HasSubstr("holds no average of the weights")));
}

TEST_F(ImportExportFixture, MissingUnknownAndMisshapenTensorsAreNamed) {
  tensors[0].name = "conv1.wight";
  tensors[2].shape = {4, 5};
  const std::string words = refusal();
  EXPECT_THAT(words, HasSubstr("conv1.weight [4, 3, 2, 2] is missing"));
  EXPECT_THAT(words, HasSubstr("conv1.wight"));
  EXPECT_THAT(words, HasSubstr("fc.weight has shape [4, 5], but the deck's model has [5, 4]"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(ImportExportFixture, OnlyTheFirstFiveAreNamed) {
  for (int i = 0; i < 7; ++i) tensors.push_back({"unknown." + std::to_string(i), {1}, {0}});
  const std::string words = refusal();
  EXPECT_THAT(words, HasSubstr("7 tensors"));
  EXPECT_THAT(words, HasSubstr("unknown.4"));
  EXPECT_THAT(words, Not(HasSubstr("unknown.5")));
}

TEST_F(ImportExportFixture, APrefixIsAcceptedAndATieIsChecked) {
  declare("wte.weight", {3, 2}, parallel::Role::weight, parallel::InnerOrder::plain, true);
  tensors.back().name = "transformer.wte.weight";
  tensors.push_back({"lm_head.weight", {3, 2}, tensors.back().values});
  tensors.push_back({"transformer.h.0.attn.bias", {1, 1, 1, 1}, {1}});
  EXPECT_EQ(refusal(), "");
  tensors[4].values[0] += 1;
  EXPECT_THAT(refusal(), HasSubstr("lm_head.weight"));
}

/// A language model and the file that another library would write for it.
struct LanguageModelFixture : testing::Test {
  ScratchFolder folder;
  std::string file = folder / "weights.safetensors", out = folder / "imported.h5";
  parallel::ParameterList expected;
  std::vector<SafetensorsTensor> tensors;

  void declare(const std::string& name, const Shape& shape, const parallel::Split& split = {}) {
    const parallel::ParameterSpec spec{
        .name = name,
        .shape = shape,
        .initializer = {parallel::Initializer::Kind::normal, 0.02},
        .split = split,
        .tied = name == "wte.weight" || name == "model.embed_tokens.weight"};
    expected.declare(spec);
    if (spec.tied) expected.declare(spec);  // the head declares it a second time
    SafetensorsTensor tensor{name, shape,
                             std::vector<float>(static_cast<std::size_t>(shape.elements()))};
    parallel::initialize_rows(spec, parallel::TensorPartition(spec), 1, 0, spec.rows(),
                              tensor.values.data());
    tensors.push_back(std::move(tensor));
  }
  void declare_gpt2(std::int64_t layers) {
    using Along = parallel::Split::Along;
    constexpr std::int64_t width = 6, vocabulary = 11, context = 5;
    declare("wte.weight", {vocabulary, width}, {Along::rows});
    declare("wpe.weight", {context, width});
    for (std::int64_t i = 0; i < layers; ++i) {
      const std::string block = "h." + std::to_string(i) + ".";
      for (const char* norm : {"ln_1", "ln_2"})
        declare(block + norm + ".weight", {width}), declare(block + norm + ".bias", {width});
      declare(block + "attn.c_attn.weight", {width, 3 * width},
              {Along::columns, {width, width, width}});
      declare(block + "attn.c_attn.bias", {3 * width}, {Along::columns, {width, width, width}});
      declare(block + "attn.c_proj.weight", {width, width}, {Along::rows});
      declare(block + "attn.c_proj.bias", {width});
      declare(block + "mlp.c_fc.weight", {width, 4 * width}, {Along::columns});
      declare(block + "mlp.c_fc.bias", {4 * width}, {Along::columns});
      declare(block + "mlp.c_proj.weight", {4 * width, width}, {Along::rows});
      declare(block + "mlp.c_proj.bias", {width});
    }
    declare("ln_f.weight", {width});
    declare("ln_f.bias", {width});
  }
  void declare_llama(std::int64_t layers, bool head) {
    using Along = parallel::Split::Along;
    constexpr std::int64_t width = 8, heads = 4, kv_heads = 2, head_width = 2, mlp_width = 12,
                           vocabulary = 11;
    declare("model.embed_tokens.weight", {vocabulary, width}, {Along::rows});
    for (std::int64_t i = 0; i < layers; ++i) {
      const std::string block = "model.layers." + std::to_string(i) + ".";
      declare(block + "input_layernorm.weight", {width});
      declare(block + "self_attn.q_proj.weight", {heads * head_width, width}, {Along::rows});
      declare(block + "self_attn.k_proj.weight", {kv_heads * head_width, width}, {Along::rows});
      declare(block + "self_attn.v_proj.weight", {kv_heads * head_width, width}, {Along::rows});
      declare(block + "self_attn.o_proj.weight", {width, heads * head_width}, {Along::columns});
      declare(block + "post_attention_layernorm.weight", {width});
      declare(block + "mlp.gate_proj.weight", {mlp_width, width}, {Along::rows});
      declare(block + "mlp.up_proj.weight", {mlp_width, width}, {Along::rows});
      declare(block + "mlp.down_proj.weight", {width, mlp_width}, {Along::columns});
    }
    declare("model.norm.weight", {width});
    if (head) declare("lm_head.weight", {vocabulary, width}, {Along::rows});
  }
  SafetensorsTensor& tensor(const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(),
                         [&](const SafetensorsTensor& tensor) { return tensor.name == name; });
  }
  std::string refusal() {
    write_safetensors(file, tensors, {});
    try {
      import_weights(WeightFiles(file), expected, {}, out);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
  /// Imports the file, exports it again and expects the same names, shapes and bits, and no other
  /// tensor.
  void expect_round_trip() {
    const std::vector<SafetensorsTensor> expected_tensors(
        tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(expected.entries().size()));
    ASSERT_EQ(refusal(), "");
    EXPECT_EQ(verify_checkpoint(out), "");
    export_safetensors(out, folder / "exported.safetensors");
    const SafetensorsReader reader(folder / "exported.safetensors");
    EXPECT_EQ(reader.entries().size(), expected_tensors.size());
    for (const SafetensorsTensor& tensor : expected_tensors) {
      const std::string name =
          tensor.name.starts_with("transformer.") ? tensor.name.substr(12) : tensor.name;
      ASSERT_TRUE(reader.entries().contains(name)) << name;
      EXPECT_EQ(reader.entries().at(name).shape, tensor.shape);
      const std::vector<float> values = reader.read_float32(name);
      EXPECT_EQ(std::memcmp(values.data(), tensor.values.data(), values.size() * sizeof(float)), 0)
          << name;
    }
  }
};

/// Writes -0, subnormals and the largest number, whose bits arithmetic might change.
void put_odd_values(std::vector<float>& values) {
  const std::uint32_t bits[] = {0x80000000u, 0x00000001u, 0x80012345u, 0x7F7FFFFFu};
  std::memcpy(values.data(), bits, sizeof bits);
}

TEST_F(LanguageModelFixture, Gpt2GoesInAndOutBitForBit) {
  declare_gpt2(2);
  put_odd_values(tensor("h.1.mlp.c_fc.weight").values);
  expect_round_trip();
}

TEST_F(LanguageModelFixture, Gpt2WithPrefixMasksAndATiedHeadGoesInAndOut) {
  declare_gpt2(2);
  put_odd_values(tensor("wte.weight").values);
  tensors.push_back({"lm_head.weight", tensor("wte.weight").shape, tensor("wte.weight").values});
  for (SafetensorsTensor& each : tensors) {
    if (each.name != "lm_head.weight") each.name = "transformer." + each.name;
  }
  for (const std::string block : {"transformer.h.0.attn.", "transformer.h.1.attn."}) {
    tensors.push_back({block + "bias", {1, 1, 5, 5}, std::vector<float>(25, 1)});
    tensors.push_back({block + "masked_bias", {}, {-1e4f}});
  }
  expect_round_trip();
}

TEST_F(LanguageModelFixture, LlamaGoesInAndOutBitForBit) {
  declare_llama(2, true);
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {1}, {1}});
  expect_round_trip();
}

TEST_F(LanguageModelFixture, ATiedLlamaHeadMustBeTheEmbedding) {
  declare_llama(1, false);
  tensors.push_back({"lm_head.weight", tensor("model.embed_tokens.weight").shape,
                     tensor("model.embed_tokens.weight").values});
  EXPECT_EQ(refusal(), "");
  tensors.back().values[7] = -tensors.back().values[7];
  const std::string words = refusal();
  EXPECT_THAT(words, HasSubstr("lm_head.weight differs from model.embed_tokens.weight"));
  tensors.back().values.pop_back();
  tensors.back().shape = {static_cast<std::int64_t>(tensors.back().values.size())};
  EXPECT_THAT(refusal(), HasSubstr("lm_head.weight differs"));
}

TEST_F(LanguageModelFixture, ATensorThatResemblesAMaskIsNotIgnored) {
  declare_gpt2(1);
  tensors.push_back({"h.0.attn.bias", {18}, std::vector<float>(18)});
  EXPECT_THAT(refusal(), HasSubstr("h.0.attn.bias [18] is not in the deck's model"));
}

/// Returns a tensor [rows, columns] as another program stores it, transposed.
SafetensorsTensor transposed(const SafetensorsTensor& tensor) {
  const std::int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  SafetensorsTensor result{tensor.name, {columns, rows}, tensor.values};
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      result.values[static_cast<std::size_t>(c * rows + r)] =
          tensor.values[static_cast<std::size_t>(r * columns + c)];
  return result;
}

/// The matrices of nanoGPT are transposed, also the square ones. Embeddings are not.
TEST_F(LanguageModelFixture, MatricesInTheOrderOfNanoGptAreTransposed) {
  declare_gpt2(2);
  for (const char* names : {"h.0.mlp.c_fc.weight", "h.1.attn.c_proj.weight"})
    put_odd_values(tensor(names).values);
  const std::vector<SafetensorsTensor> meant = tensors;
  for (SafetensorsTensor& each : tensors)
    if (each.name.starts_with("h.") && each.shape.rank() == 2) each = transposed(each);
  ASSERT_EQ(refusal(), "");
  EXPECT_EQ(import_weights(WeightFiles(file), expected, {}, out), FileMatrixOrder::linear);
  export_safetensors(out, folder / "exported.safetensors");
  const SafetensorsReader reader(folder / "exported.safetensors");
  for (const SafetensorsTensor& each : meant) {
    const std::vector<float> values = reader.read_float32(each.name);
    EXPECT_EQ(reader.entries().at(each.name).shape, each.shape);
    EXPECT_EQ(std::memcmp(values.data(), each.values.data(), values.size() * sizeof(float)), 0)
        << each.name;
  }
  // Against the shapes the option is refused.
  EXPECT_THAT(
      [&] { import_weights(WeightFiles(file), expected, {}, out, FileMatrixOrder::conv1d); },
      ThrowsMessage<InputError>(
          HasSubstr("h.0.attn.c_attn.weight has shape [18, 6], but the deck's model has [6, 18]")));
}

TEST_F(LanguageModelFixture, MatricesOfTwoOrdersAreRefused) {
  declare_gpt2(1);
  tensor("h.0.attn.c_attn.weight") = transposed(tensor("h.0.attn.c_attn.weight"));
  const std::string words = refusal();
  EXPECT_THAT(words, HasSubstr("its matrices have two orders: "));
  EXPECT_THAT(words, HasSubstr("h.0.attn.c_attn.weight [18, 6] is [out, in]"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(LanguageModelFixture, SquareMatricesAloneNeedTheOption) {
  declare("h.0.attn.c_proj.weight", {6, 6});
  declare("h.0.mlp.c_proj.weight", {6, 6});
  const std::string words = refusal();
  EXPECT_THAT(words, HasSubstr("h.0.mlp.c_proj.weight [6, 6], so their order is unknown; give "
                               "--matrix-order linear"));
  for (const FileMatrixOrder order : {FileMatrixOrder::linear, FileMatrixOrder::conv1d}) {
    import_weights(WeightFiles(file), expected, {}, out, order);
    export_safetensors(out, folder / "exported.safetensors");
    const std::string name = "h.0.mlp.c_proj.weight";
    const std::vector<float> found =
        SafetensorsReader(folder / "exported.safetensors").read_float32(name);
    EXPECT_EQ(found == tensor(name).values, order == FileMatrixOrder::conv1d);
    EXPECT_EQ(found == transposed(tensor(name)).values, order == FileMatrixOrder::linear);
  }
}

TEST_F(LanguageModelFixture, TheOptionIsForTheNamesOfGpt2) {
  declare_llama(1, false);
  EXPECT_EQ(refusal(), "");
  for (const FileMatrixOrder order : {FileMatrixOrder::linear, FileMatrixOrder::conv1d})
    EXPECT_THAT(
        [&] { import_weights(WeightFiles(file), expected, {}, out, order); },
        ThrowsMessage<InputError>(HasSubstr("--matrix-order is for models with GPT-2's names")));
}

}  // namespace
}  // namespace trireme::checkpoint
