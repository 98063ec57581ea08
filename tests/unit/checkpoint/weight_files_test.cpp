// SPDX-License-Identifier: Apache-2.0
//
// Tests weights in one or several safetensors files: folders, indices that agree with their files,
// and names without the prefixes of wrappers.
#include "trireme/checkpoint/weights/weight_files.hpp"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "trireme/base/error.hpp"
#include "trireme/io/file.hpp"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;

using test::message_of;

/// A folder with two files, "a" and "b" in the first and "c" in the second, and their index.
struct WeightFilesFixture : testing::Test {
  const test::ScratchFolder folder;
  const std::string first = folder / "model-00001-of-00002.safetensors",
                    second = folder / "model-00002-of-00002.safetensors",
                    index = folder / "model.safetensors.index.json";

  WeightFilesFixture() {
    write_safetensors(first, {{"a", {2}, {1, 2}}, {"b", {1, 1}, {3}}}, {});
    write_safetensors(second, {{"c", {3}, {4, 5, 6}}}, {});
    write_index({{"a", "model-00001-of-00002.safetensors"},
                 {"b", "model-00001-of-00002.safetensors"},
                 {"c", "model-00002-of-00002.safetensors"}});
  }
  void write_index(const std::vector<std::pair<std::string, std::string>>& files) {
    std::string map;
    for (const auto& [tensor, file] : files)
      map += (map.empty() ? "" : ", ") + ("\"" + tensor + "\": \"" + file + "\"");
    io::replace_file(index, "{\"metadata\": {\"total_size\": 24}, \"weight_map\": {" + map + "}}");
  }
  std::string refusal(const std::string& path) const {
    return message_of<InputError>([&] { WeightFiles{path}; });
  }
  /// Returns the refusal of a single file with tensors of these names.
  std::string refusal_of_names(const std::vector<std::string>& names) const {
    std::vector<SafetensorsTensor> tensors;
    for (const std::string& name : names) tensors.push_back({name, {1}, {1}});
    write_safetensors(folder / "names.safetensors", tensors, {});
    return refusal(folder / "names.safetensors");
  }
};

TEST_F(WeightFilesFixture, AnIndexAndItsFolderHaveAllTensors) {
  for (const std::string& path : {index, folder.path(), folder.path() + "/"}) {
    const WeightFiles weights(path);
    EXPECT_EQ(weights.files(), (std::vector<std::string>{first, second}));
    EXPECT_EQ(weights.source_files(), (std::vector<std::string>{first, second, index}));
    EXPECT_FALSE(weights.config());
    ASSERT_EQ(weights.tensors().size(), 3u);
    EXPECT_EQ(weights.tensors().at("b").shape, (Shape{1, 1}));
    EXPECT_EQ(weights.read_float32("a"), (std::vector<float>{1, 2}));
    EXPECT_EQ(weights.read_float32("c"), (std::vector<float>{4, 5, 6}));
  }
}

TEST_F(WeightFilesFixture, AFolderHasOneModel) {
  std::filesystem::copy_file(second, folder / "model.safetensors");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("holds model.safetensors and model.safetensors."));
  std::filesystem::remove(index);
  EXPECT_EQ(WeightFiles(folder.path()).read_float32("c"), (std::vector<float>{4, 5, 6}));
  std::filesystem::remove(folder / "model.safetensors");
  for (const std::string& file : {first, second}) std::filesystem::remove(file);
  EXPECT_THAT(refusal(folder.path()),
              HasSubstr("is a folder and holds neither model.safetensors nor"));
}

TEST_F(WeightFilesFixture, IndexAndFilesMustNameTheSameTensors) {
  const std::string one = "model-00001-of-00002.safetensors",
                    two = "model-00002-of-00002.safetensors";
  write_index({{"a", one}, {"c", two}});
  EXPECT_THAT(refusal(index), HasSubstr(one + ": holds b, which " + index + " does not name"));
  write_index({{"a", one}, {"b", two}, {"c", two}});
  EXPECT_THAT(refusal(index), HasSubstr(one + ": holds b, which " + index + " names in " + two));
  write_index({{"a", one}, {"b", one}, {"c", two}, {"d", two}});
  EXPECT_THAT(refusal(index), HasSubstr(two + ": has no tensor d, which"));
  write_index({{"a", one}, {"b", one}, {"c", "model-00003-of-00002.safetensors"}});
  EXPECT_THAT(refusal(index),
              HasSubstr(index + ": the index names model-00003-of-00002.safetensors, "
                                "which is not in its folder"));
}

TEST_F(WeightFilesFixture, FilesAreInTheFolderOfTheIndex) {
  for (const char* name : {"../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "",
                           "pytorch_model.bin", "model.safetensors\\u0000.safetensors"}) {
    write_index({{"a", name}});
    EXPECT_THAT(refusal(index), HasSubstr("weight_map: the file of a is ")) << name;
  }
}

TEST_F(WeightFilesFixture, OtherJsonIsNoIndex) {
  for (const char* text : {"{}", R"({"weight_map": {}})", R"({"weight_map": ["a"]})"}) {
    io::replace_file(index, text);
    EXPECT_THAT(refusal(index), HasSubstr(index + ": has no weight_map")) << text;
  }
  for (const auto& [text, part] :
       {std::pair("[]", ": is not a JSON object"),
        {R"({"weight_map": {"a": 3}})", "the file of a is of type number"},
        {R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})",
         "the member a occurs twice"},
        {R"({"weight_map": {"a": [[[1]]]}})", "nested more than 4 levels deep"},
        {"weights", ": is not JSON"}}) {
    io::replace_file(index, text);
    EXPECT_THAT(refusal(index), HasSubstr(part));
  }
}

TEST_F(WeightFilesFixture, PrefixesOfWrappersAreTakenOff) {
  EXPECT_EQ(refusal_of_names({"module.a", "_orig_mod.b", "_orig_mod.module.c", "module._orig_mod.d",
                              "module.transformer.e", "_orig_mod.transformer.h.0.f",
                              "transformer.h.1._orig_mod.g", "transformer.h.0._orig_mod.module.w",
                              "x_orig_mod.y", "transformer_module.z", "h.module.a"}),
            "");
  const WeightFiles weights(folder / "names.safetensors");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights.tensors()) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"a", "b", "c", "d", "e", "h.0.f", "h.0.module.w", "h.1.g",
                                      "h.module.a", "transformer_module.z", "x_orig_mod.y"}));
  EXPECT_EQ(weights.tensors().at("c").stored_name, "_orig_mod.module.c");
  EXPECT_EQ(weights.read_float32("c"), (std::vector<float>{1}));
}

TEST_F(WeightFilesFixture, PrefixesOfTrainersAreTakenOff) {
  const std::vector<std::pair<std::string, std::string>> stored_and_plain = {
      {"model.transformer.h.0.ln_1.weight", "h.0.ln_1.weight"},
      {"transformer.model.wte.weight", "wte.weight"},
      {"state_dict.model.conv1.weight", "conv1.weight"},
      {"net.layer1.0.conv1.weight", "layer1.0.conv1.weight"},
      {"_forward_module.module.bn1.weight", "bn1.weight"},
      {"model.model.layers.0.mlp._fsdp_wrapped_module.up_proj.weight",
       "model.layers.0.mlp.up_proj.weight"},
      {"model.model.embed_tokens.weight", "model.embed_tokens.weight"},
      {"model.norm.weight", "model.norm.weight"},
      {"model.lm_head.weight", "lm_head.weight"},
      {"model.layers.1.bias", "layers.1.bias"},
      {"layers.0.weight", "layers.0.weight"}};
  std::vector<std::string> stored;
  for (const auto& [name, plain] : stored_and_plain) stored.push_back(name);
  EXPECT_EQ(refusal_of_names(stored), "");
  const WeightFiles weights(folder / "names.safetensors");
  for (const auto& [name, plain] : stored_and_plain) {
    ASSERT_TRUE(weights.tensors().contains(plain)) << plain;
    EXPECT_EQ(weights.tensors().at(plain).stored_name, name);
  }
}

TEST_F(WeightFilesFixture, UnknownPrefixesAreNamedIfAllTensorsHaveThem) {
  EXPECT_EQ(refusal_of_names({"backbone.conv1.weight", "backbone.layer1.0.conv1.weight"}), "");
  EXPECT_EQ(WeightFiles(folder / "names.safetensors").hint_for_missing("conv1.weight"),
            "; the file has backbone.conv1.weight: save its tensors without the prefix backbone.");
  EXPECT_EQ(refusal_of_names({"layer1.0.conv1.weight", "fc.weight"}), "");
  EXPECT_EQ(WeightFiles(folder / "names.safetensors").hint_for_missing("conv1.weight"), "");
}

TEST_F(WeightFilesFixture, AdaptersAreRefused) {
  for (const char* name :
       {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "h.0.attn.c_attn.lora_B.default.weight", "h.0.attn.c_attn.base_layer.weight",
        "base_model.model.lm_head.weight", "layers.0.ia3_l"}) {
    const std::string message = refusal_of_names({"wte.weight", name});
    EXPECT_THAT(message, HasSubstr(name));
    EXPECT_THAT(message, HasSubstr("merge it into its model first"));
  }
  const test::ScratchFolder adapter;
  write_safetensors(adapter / "adapter_model.safetensors", {{"a", {1}, {1}}}, {});
  EXPECT_THAT(refusal(adapter.path()), HasSubstr("merge it into its model first"));
}

TEST_F(WeightFilesFixture, OneFileOfSeveralIsRefusedWithItsIndex) {
  EXPECT_THAT(refusal(second), HasSubstr("is file 00002 of 00002 of a model; give the index of all "
                                         "of them, " +
                                         index + ", or its folder"));
  std::filesystem::remove(index);
  for (const std::string& path : {first, folder.path()})
    EXPECT_THAT(refusal(path), HasSubstr(index + ", which is missing here: copy it and all files"));
  for (const char* name : {"model-00001-of-00001.safetensors", "a-1-of-2.safetensors",
                           "-00001-of-00002.safetensors"}) {
    std::filesystem::copy_file(second, folder / name);
    EXPECT_EQ(refusal(folder / name), "") << name;
  }
}

TEST_F(WeightFilesFixture, ConfigsAreBesideALinkOrItsTarget) {
  const test::ScratchFolder snapshot;
  const std::string link = snapshot / "model.safetensors";
  std::filesystem::create_symlink(second, link);
  EXPECT_FALSE(WeightFiles(link).config());
  io::replace_file(folder / "config.json", "{}");
  std::error_code ignored;
  EXPECT_TRUE(std::filesystem::equivalent(WeightFiles(link).config().value(),
                                          folder / "config.json", ignored));
  io::replace_file(snapshot / "config.json", "{}");
  EXPECT_EQ(WeightFiles(snapshot.path()).config(), snapshot / "config.json");
}

TEST_F(WeightFilesFixture, TwoTensorsOfOneNameAreRefused) {
  for (const char* prefix : {"module.", "_orig_mod.", "transformer.", "module._orig_mod."}) {
    const std::string message = refusal_of_names({"a.b", prefix + std::string("a.b")});
    EXPECT_THAT(message, HasSubstr("are the same tensor a.b with and without a prefix"));
  }
}

}  // namespace
}  // namespace trireme::checkpoint
