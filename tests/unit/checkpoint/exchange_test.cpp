#include "trireme/checkpoint/exchange.hpp"

#include <gtest/gtest.h>

#include "example.hpp"
#include "trireme/base/check.hpp"
#include "trireme/checkpoint/safetensors.hpp"
#include "trireme/checkpoint/verify.hpp"

namespace trireme::checkpoint {
namespace {

struct Exchange : testing::Test {
  Folder folder;
  std::string file = folder / "weights.safetensors", out = folder / "imported.h5";
  parallel::ParameterList expected;
  std::vector<SafetensorsTensor> tensors;

  void SetUp() override {
    declare("conv1.weight", {4, 3, 2, 2}, parallel::Role::weight, parallel::InnerOrder::channels_last);
    declare("bn1.running_mean", {4}, parallel::Role::statistic, parallel::InnerOrder::plain);
    declare("fc.weight", {5, 4}, parallel::Role::weight, parallel::InnerOrder::plain);
  }
  void declare(const std::string& name, const Shape& shape, parallel::Role role, parallel::InnerOrder inner) {
    parallel::ParameterSpec spec;
    spec.name = name;
    spec.shape = shape;
    spec.role = role;
    spec.inner = inner;
    expected.declare(spec);
    SafetensorsTensor tensor{name, shape, {}};
    for (std::int64_t i = 0; i < shape.elements(); ++i) tensor.values.push_back(static_cast<float>(i) + static_cast<float>(tensors.size()) / 8);
    tensors.push_back(tensor);
  }
  std::string refusal() {
    write_safetensors(file, tensors, {});
    try {
      import_safetensors(file, expected, "", out);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(Exchange, ImportAndExportGiveTheSameTensors) {
  tensors.push_back({"bn1.num_batches_tracked", {1}, {9}});
  write_safetensors(file, tensors, {});
  import_safetensors(file, expected, "[run]\n", out);
  EXPECT_EQ(verify_checkpoint(out), "");
  const Contents contents = read_contents(out);
  EXPECT_EQ(contents.info.step, 0);
  EXPECT_EQ(contents.info.deck, "[run]\n");
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

TEST_F(Exchange, MissingUnknownAndMisshapenTensorsAreNamed) {
  tensors[0].name = "conv1.wight";
  tensors[2].shape = {4, 5};
  const std::string words = refusal();
  EXPECT_NE(words.find("conv1.weight [4, 3, 2, 2] is missing"), std::string::npos) << words;
  EXPECT_NE(words.find("conv1.wight"), std::string::npos) << words;
  EXPECT_NE(words.find("fc.weight has shape [4, 5] where the deck's model has [5, 4]"), std::string::npos) << words;
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(Exchange, OnlyTheFirstFiveAreNamed) {
  for (int i = 0; i < 7; ++i) tensors.push_back({"unknown." + std::to_string(i), {1}, {0}});
  const std::string words = refusal();
  EXPECT_NE(words.find("7 tensors"), std::string::npos) << words;
  EXPECT_NE(words.find("unknown.4"), std::string::npos) << words;
  EXPECT_EQ(words.find("unknown.5"), std::string::npos) << words;
}

TEST_F(Exchange, APrefixIsAcceptedAndATieIsChecked) {
  declare("wte.weight", {3, 2}, parallel::Role::weight, parallel::InnerOrder::plain);
  tensors.back().name = "transformer.wte.weight";
  tensors.push_back({"lm_head.weight", {3, 2}, tensors.back().values});
  tensors.push_back({"transformer.h.0.attn.bias", {1}, {1}});
  EXPECT_EQ(refusal(), "");
  tensors[4].values[0] += 1;
  EXPECT_NE(refusal().find("lm_head.weight"), std::string::npos);
}

}  // namespace
}  // namespace trireme::checkpoint
