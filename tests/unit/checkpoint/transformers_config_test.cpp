// SPDX-License-Identifier: Apache-2.0
//
// Tests the reader of config.json: names and defaults of both families, and every key that changes
// what the model computes is refused with its value.
#include "trireme/checkpoint/weights/transformers_config.hpp"

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

std::optional<TransformersConfig> read(const std::string& text) {
  const test::ScratchFolder folder;
  io::replace_file(folder / "config.json", text);
  return read_transformers_config(folder / "config.json");
}
std::string refusal(const std::string& text) {
  return message_of<InputError>([&] { read(text); });
}
/// Returns a file of a family with more members.
std::string file_of(const std::string& type, const std::string& members) {
  return R"({"model_type": ")" + type + "\"" + (members.empty() ? "" : ", " + members) + "}";
}

TEST(TransformersConfig, MissingKeysHaveTheDefaultsOfTransformers) {
  const auto gpt2 = read(file_of("gpt2", ""));
  ASSERT_TRUE(gpt2);
  EXPECT_EQ(gpt2->family, TransformersConfig::Family::gpt2);
  EXPECT_EQ(gpt2->layers, 12);
  EXPECT_EQ(gpt2->heads, 12);
  EXPECT_EQ(gpt2->kv_heads, 12);
  EXPECT_EQ(gpt2->width, 768);
  EXPECT_EQ(gpt2->mlp_width, 3072);
  EXPECT_EQ(gpt2->context, 1024);
  EXPECT_EQ(gpt2->vocabulary, 50257);
  EXPECT_EQ(gpt2->norm_epsilon, 1e-5);
  EXPECT_TRUE(gpt2->bias);
  EXPECT_TRUE(gpt2->tie_embeddings);

  const auto llama = read(file_of("llama", R"("num_attention_heads": 16)"));
  ASSERT_TRUE(llama);
  EXPECT_EQ(llama->family, TransformersConfig::Family::llama);
  EXPECT_EQ(llama->heads, 16);
  EXPECT_EQ(llama->kv_heads, 16) << "as many as heads";
  EXPECT_EQ(llama->mlp_width, 11008);
  EXPECT_EQ(llama->norm_epsilon, 1e-6);
  EXPECT_EQ(llama->rope_base, 10000);
  EXPECT_FALSE(llama->bias);
  EXPECT_FALSE(llama->tie_embeddings);
  EXPECT_EQ(read(file_of("mistral", R"("sliding_window": null)"))->kv_heads, 8);
}

TEST(TransformersConfig, KeysAreRead) {
  const auto gpt2 = read(file_of("gpt2", R"("n_layer": 2, "n_head": 3, "n_embd": 6, "n_inner": 7,
      "n_positions": 8, "vocab_size": 9, "layer_norm_epsilon": 1e-3, "tie_word_embeddings": false,
      "activation_function": "gelu_pytorch_tanh", "resid_pdrop": 0.3, "n_ctx": 5)"));
  EXPECT_EQ(gpt2->layers, 2);
  EXPECT_EQ(gpt2->heads, 3);
  EXPECT_EQ(gpt2->width, 6);
  EXPECT_EQ(gpt2->mlp_width, 7);
  EXPECT_EQ(gpt2->context, 8);
  EXPECT_EQ(gpt2->vocabulary, 9);
  EXPECT_EQ(gpt2->norm_epsilon, 1e-3);
  EXPECT_FALSE(gpt2->tie_embeddings);
  const auto llama = read(file_of("llama", R"("num_key_value_heads": 2, "attention_bias": true,
      "mlp_bias": true, "rope_theta": 5e5, "rms_norm_eps": 9.999999747378752e-06,
      "head_dim": 128, "rope_scaling": null)"));
  EXPECT_EQ(llama->kv_heads, 2);
  EXPECT_TRUE(llama->bias);
  EXPECT_EQ(llama->rope_base, 5e5);
  EXPECT_EQ(llama->norm_epsilon, 1e-5) << "a float32 that was written as a double";
}

/// Transformers 4 writes rope_theta and rope_scaling, 5 writes rope_parameters.
TEST(TransformersConfig, TheBaseOfRotaryPositionsHasTwoForms) {
  for (const char* members :
       {R"("rope_theta": 500)", R"("rope_parameters": {"rope_theta": 500, "rope_type": "default"})",
        R"("rope_theta": 500, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0})",
        R"("rope_theta": 500, "rope_scaling": {"type": "default"})"})
    EXPECT_EQ(read(file_of("llama", members))->rope_base, 500) << members;
  EXPECT_THAT(refusal(file_of("llama", R"("rope_theta": 500,
                                       "rope_parameters": {"rope_theta": 600})")),
              HasSubstr("contradicts rope_theta = 500"));
}

TEST(TransformersConfig, UnsupportedSettingsAreNamedWithTheirValues) {
  const std::string llama = "llama", gpt2 = "gpt2";
  using Member = std::pair<std::string, std::string>;  // the family, and a member of the object
  for (const auto& [type, member] : std::vector<Member>{
           {llama, R"("rope_scaling": {"factor":8.0,"rope_type":"llama3"})"},
           {llama, R"("rope_scaling": {"factor":2.0})"},
           {llama, R"("rope_parameters": {"rope_theta":1.5,"rope_type":"yarn"})"},
           {llama, R"("rope_parameters": {"full_attention":{"rope_type":"default"}})"},
           {llama, R"("rope_parameters": {"partial_rotary_factor":0.5})"},
           {llama, R"("partial_rotary_factor": 0.5)"},
           {llama, R"("hidden_act": "gelu")"},
           {llama, R"("head_dim": 64)"},
           {llama, R"("sliding_window": 4096)"},
           {"mistral", R"("sliding_window": 4096)"},
           {llama, R"("layer_types": ["full_attention","sliding_attention"])"},
           {llama, R"("quantization_config": {"bits":4})"},
           {llama, R"("auto_map": {"AutoModel":"modeling.Own"})"},
           {llama, R"("num_hidden_layers": 0)"},
           {llama, R"("hidden_size": 4096.5)"},
           {llama, R"("rms_norm_eps": "1e-5")"},
           {llama, R"("rms_norm_eps": -1e-05)"},
           {llama, R"("tie_word_embeddings": "no")"},
           {gpt2, R"("activation_function": "gelu")"},
           {gpt2, R"("activation_function": "relu")"},
           {gpt2, R"("scale_attn_weights": false)"},
           {gpt2, R"("scale_attn_by_inverse_layer_idx": true)"},
           {gpt2, R"("scale_attn_weights": null)"},
           {gpt2, R"("add_cross_attention": true)"},
           {gpt2, R"("is_causal": false)"},
           {gpt2, R"("rope_theta": 10000.0)"},
           {gpt2, R"("pruned_heads": {"0":[1]})"},
           {llama, R"("no_rope_layers": [1,1,0,1])"},
           {llama, R"("clip_qkv": 8.0)"},
           {llama, R"("attention_multiplier": 0.0078125)"},
           {llama, R"("residual_multiplier": 0.22)"},
           {llama, R"("final_logit_softcapping": 30.0)"},
           {llama, R"("use_qk_norm": true)"},
           {llama, R"("num_experts": 8)"},
           {llama, R"("a_fork_of_tomorrow": false)"},
           {"mistral", R"("layer_norm_eps": 1e-05)"}}) {
    const std::string message = refusal(file_of(type, member));
    const std::string key = member.substr(1, member.find('"', 1) - 1),
                      value = member.substr(key.size() + 4);
    EXPECT_THAT(message, HasSubstr("config.json: describes a model that this program does not"));
    EXPECT_THAT(message, HasSubstr(key + " = " + value + ": ")) << member;
  }
  EXPECT_THAT(refusal(file_of("llama", R"("attention_bias": true)")),
              HasSubstr("attention_bias = true with mlp_bias = false"));
  EXPECT_THAT(refusal(file_of("mistral", "")), HasSubstr("sliding_window is missing"));
  // Without head_dim the deck refuses a width that is not a multiple of the heads.
  EXPECT_EQ(read(file_of("llama", R"("num_attention_heads": 5)"))->heads, 5);
  for (const char* type : {"qwen2", "gemma", "gpt_neox", ""})
    EXPECT_THAT(refusal(file_of(type, "")),
                HasSubstr("model_type = \"" + std::string(type) + "\""));
  EXPECT_THAT(refusal(R"({"model_type": 3})"), HasSubstr("model_type = 3"));
}

TEST(TransformersConfig, NeutralValuesOfOtherModelsAreAccepted) {
  for (const char* members :
       {R"("is_causal": true, "partial_rotary_factor": 1.0, "no_rope_layers": [1, 1])",
        R"("residual_multiplier": 1, "clip_qkv": null, "use_qk_norm": false, "num_experts": 0)",
        R"("layer_types": ["full_attention"], "pruned_heads": {}, "a_fork_of_tomorrow": null)"})
    EXPECT_TRUE(read(file_of("llama", members))) << members;
}

/// Files as they are published: those of transformers 4.30 and 4.46, and of Hugging Face's hub.
TEST(TransformersConfig, KeysWithoutEffectAreIgnored) {
  EXPECT_TRUE(read(file_of("gpt2", R"("_num_labels": 1, "activation_function": "gelu_new",
      "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
      "embd_pdrop": 0.1, "eos_token_id": 50256, "gradient_checkpointing": false,
      "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02, "label2id": {"LABEL_0": 0},
      "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_inner": null,
      "n_layer": 12, "n_positions": 1024, "output_past": true, "reorder_and_upcast_attn": false,
      "resid_pdrop": 0.1, "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true,
      "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
      "summary_type": "cls_index", "summary_use_proj": true,
      "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
      "torch_dtype": "float32", "transformers_version": "4.46.3", "use_cache": true,
      "vocab_size": 50257)")));
  EXPECT_TRUE(read(file_of("llama", R"("_name_or_path": "a", "architectures": ["LlamaForCausalLM"],
      "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": [2, 3],
      "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 11008, "is_llama_config": true, "max_position_embeddings": 2048,
      "max_sequence_length": 2048, "mlp_bias": false, "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 0, "pretraining_tp": 1,
      "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
      "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers.js_config": {"dtype": "q4"}, "transformers_version": "4.30.2",
      "unsloth_version": "2024.9", "use_cache": true, "vocab_size": 32000)")));
}

TEST(TransformersConfig, Gpt2HasAliases) {
  const auto gpt2 = read(file_of("gpt2", R"("hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "max_position_embeddings": 32, "n_layer": 2)"));
  EXPECT_EQ(gpt2->width, 64);
  EXPECT_EQ(gpt2->layers, 2);
  EXPECT_EQ(gpt2->heads, 4);
  EXPECT_EQ(gpt2->context, 32);
  EXPECT_EQ(gpt2->mlp_width, 256);
  EXPECT_THAT(refusal(file_of("gpt2", R"("n_embd": 64, "hidden_size": 128)")),
              HasSubstr("hidden_size = 128: contradicts n_embd = 64"));
}

TEST(TransformersConfig, ArchitecturesNameAFamilyWithoutAModelType) {
  const auto read_class = [](const std::string& name) {
    return read("{\"architectures\": [\"" + name + "\"], \"sliding_window\": null}");
  };
  EXPECT_EQ(read_class("GPT2LMHeadModel")->family, TransformersConfig::Family::gpt2);
  EXPECT_EQ(read_class("LlamaForCausalLM")->mlp_width, 11008);
  EXPECT_EQ(read_class("MistralForCausalLM")->mlp_width, 14336);
  EXPECT_FALSE(read_class("GemmaForCausalLM"));
}

TEST(TransformersConfig, NullKeyValueHeadsAreAsManyAsHeads) {
  for (const char* type : {"llama", "mistral"})
    EXPECT_EQ(read(file_of(type, R"("num_key_value_heads": null, "num_attention_heads": 16,
                                 "sliding_window": null)"))
                  ->kv_heads,
              16);
}

TEST(TransformersConfig, AllProblemsAreReportedTogether) {
  const std::string message = refusal(
      file_of("llama", R"("hidden_act": "relu", "sliding_window": 8, "attention_bias": true)"));
  for (const char* key : {"hidden_act", "sliding_window", "attention_bias"})
    EXPECT_THAT(message, HasSubstr(key));
}

TEST(TransformersConfig, AWrittenFileIsReadBack) {
  TransformersConfig gpt2{.family = TransformersConfig::Family::gpt2,
                          .layers = 2,
                          .heads = 3,
                          .kv_heads = 3,
                          .width = 12,
                          .mlp_width = 7,
                          .vocabulary = 9,
                          .context = 8,
                          .norm_epsilon = 1e-6,
                          .tie_embeddings = false};
  TransformersConfig llama = gpt2;
  llama.family = TransformersConfig::Family::llama;
  llama.kv_heads = 1;
  llama.rope_base = 5e5;
  for (const bool flag : {false, true}) {
    llama.bias = gpt2.tie_embeddings = flag;
    TransformersConfig with_dropout = gpt2;
    with_dropout.dropout = 0.1;
    EXPECT_EQ(read(to_json(with_dropout)), gpt2);
    EXPECT_EQ(read(to_json(llama)), llama);
  }
}

TEST(TransformersConfig, OtherFilesAreNoModelsOrRefused) {
  EXPECT_FALSE(read("{}"));
  EXPECT_FALSE(read(R"({"model_type": null, "labels": ["a"]})"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("config.json: is not a JSON object"));
  EXPECT_THAT(refusal("model_type: llama"), HasSubstr("config.json: is not JSON"));
  EXPECT_THAT(refusal(R"({"model_type": "gpt2", "model_type": "llama"})"),
              HasSubstr("the member model_type occurs twice"));
  EXPECT_THAT(refusal(std::string(40, '[')),
              HasSubstr("config.json: is nested more than 16 levels"));
  EXPECT_THAT(refusal("{\"a\": \"" + std::string(1 << 20, 'a') + "\"}"),
              HasSubstr("more than the limit of 1048576"));
}

}  // namespace
}  // namespace trireme::checkpoint
