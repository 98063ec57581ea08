// SPDX-License-Identifier: Apache-2.0
//
// Tensor names and config.json of GPT-2 and of Llama as in Hugging Face's transformers.
#include <fmt/format.h>

#include "parts.hpp"
#include "trireme/base/check.hpp"

namespace trireme::model {

TransformerNames::TransformerNames(const TransformerOptions& options)
    : is_gpt2(options.positions == PositionKind::learned),
      is_gated(options.mlp == MlpKind::swiglu),
      order(is_gpt2 ? ops::MatrixOrder::in_out : ops::MatrixOrder::out_in),
      embedding(is_gpt2 ? "wte" : "model.embed_tokens"),
      positions("wpe"),
      final_norm(is_gpt2 ? "ln_f" : "model.norm"),
      head("lm_head") {}

AttentionBlockOptions::Names TransformerNames::layer(std::int64_t index) const {
  const std::string block = (is_gpt2 ? "h." : "model.layers.") + std::to_string(index),
                    prefix = block + ".";
  if (is_gpt2) {
    return {block,
            prefix + "ln_1",
            prefix + "attn.c_proj",
            prefix + "ln_2",
            prefix + "mlp.c_proj",
            {prefix + "attn.c_attn"},
            {prefix + "mlp.c_fc"}};
  }
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  AttentionBlockOptions::Names layer{block,
                                     prefix + "input_layernorm",
                                     attention + "o_proj",
                                     prefix + "post_attention_layernorm",
                                     mlp + "down_proj",
                                     {},
                                     {}};
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) layer.qkv.push_back(attention + name);
  if (is_gated) layer.up.push_back(mlp + "gate_proj");
  layer.up.push_back(mlp + "up_proj");
  return layer;
}

std::string deck_lines(const TransformersConfig& config) {
  const bool is_gpt2 = config.family == TransformersConfig::Family::gpt2;
  std::string lines = fmt::format(
      "[model]\nkind = \"gpt\"\nlayers = {}\nheads = {}\nkv_heads = {}\nwidth = {}\n"
      "mlp_width = {}\ncontext = {}\nvocabulary = {}\nmlp = \"{}\"\nnorm = \"{}\"\n"
      "norm_epsilon = {}\npositions = \"{}\"\n",
      config.layers, config.heads, config.kv_heads, config.width, config.mlp_width, config.context,
      config.vocabulary, is_gpt2 ? "gelu" : "swiglu", is_gpt2 ? "layer" : "rms",
      config.norm_epsilon, is_gpt2 ? "learned" : "rope");
  if (!is_gpt2) lines += fmt::format("rope_base = {}\n", config.rope_base);
  return lines +
         fmt::format("bias = {}\ntie_embeddings = {}\n", config.bias, config.tie_embeddings);
}

TransformersConfig transformers_config(const ModelOptions& options, std::int64_t vocabulary) {
  const auto& gpt = options.as<TransformerOptions>();
  const bool is_gpt2 = gpt.positions == PositionKind::learned && gpt.norm == NormKind::layer &&
                       gpt.mlp == MlpKind::gelu && gpt.bias && gpt.kv_heads == gpt.heads,
             is_llama = gpt.positions == PositionKind::rope && gpt.norm == NormKind::rms &&
                        gpt.mlp == MlpKind::swiglu;
  validate(is_gpt2 || is_llama,
           "transformers has no model for this deck, only for GPT-2's form (positions = "
           "\"learned\", norm = \"layer\", mlp = \"gelu\", bias = true, kv_heads = heads) and for "
           "Llama's (\"rope\", \"rms\", \"swiglu\"); write the tensors alone: --out "
           "NAME.safetensors");
  return {.family = is_gpt2 ? TransformersConfig::Family::gpt2 : TransformersConfig::Family::llama,
          .layers = gpt.layers,
          .heads = gpt.heads,
          .kv_heads = gpt.kv_heads,
          .width = gpt.width,
          .mlp_width = gpt.mlp_width,
          .vocabulary = vocabulary,
          .context = gpt.context,
          .norm_epsilon = gpt.norm_epsilon,
          .rope_base = gpt.rope_base,
          .bias = gpt.bias,
          .tie_embeddings = gpt.tie_embeddings,
          .dropout = gpt.dropout};
}

}  // namespace trireme::model
