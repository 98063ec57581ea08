// SPDX-License-Identifier: Apache-2.0
//
// Tensor names of GPT-2 and of Llama as in Hugging Face Transformers.
#include "parts.hpp"

namespace trireme::model {

TransformerNames::TransformerNames(const TransformerOptions& options)
    : is_gpt2(options.positions == PositionKind::learned),
      is_gated(options.mlp == MlpKind::swiglu),
      order(is_gpt2 ? ops::MatrixOrder::in_out : ops::MatrixOrder::out_in),
      embedding(is_gpt2 ? "wte" : "model.embed_tokens"),
      positions("wpe"),
      final_norm(is_gpt2 ? "ln_f" : "model.norm"),
      head("lm_head") {}

TransformerNames::Layer TransformerNames::layer(std::int64_t index) const {
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
  Layer layer{block,
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

}  // namespace trireme::model
