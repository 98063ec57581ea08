// SPDX-License-Identifier: Apache-2.0
//
// The keys of config.json that are read for no size of the model.
//
// All other keys are refused, because a key that is not known may change what the model computes.
// The lists hold the keys of PretrainedConfig, GPT2Config, LlamaConfig and MistralConfig in
// transformers 4.30 to 5.24, and those that published files of these families have beside them.
#include "transformers_keys.hpp"

#include <algorithm>
#include <iterator>

namespace trireme::checkpoint {
namespace {

constexpr std::string_view ignored_keys[] = {
    // Names and versions.
    "_commit_hash", "_from_model_config", "_name_or_path", "architectures", "custom_pipelines",
    "finetuning_task", "is_llama_config", "license", "model_name", "name_or_path",
    "tokenizer_class", "transformers.js_config", "transformers_version", "unsloth_fixed",
    "unsloth_version",
    // Dtypes and the way in which the function is computed.
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
    "_experts_implementation", "_flash_attn_2_enabled", "attn_implementation",
    "chunk_size_feed_forward", "dtype", "gradient_checkpointing", "pretraining_tp",
    "reorder_and_upcast_attn", "torch_dtype", "torchscript", "use_bfloat16", "xla_device",
    // Outputs and caches.
    "_output_attentions", "cache_implementation", "is_decoder", "output_attentions",
    "output_hidden_states", "output_past", "return_dict", "tf_legacy_loss", "tie_encoder_decoder",
    "use_cache", "use_return_dict",
    // Training: dropout and initial values.
    "attention_dropout", "attn_pdrop", "classifier_dropout", "embd_pdrop", "hidden_dropout",
    "initializer_range", "resid_pdrop", "summary_first_dropout",
    // Heads of classifiers.
    "_num_labels", "id2label", "label2id", "num_labels", "predict_special_tokens", "problem_type",
    "summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    // Tokenizers.
    "bos_token_id", "cls_token_id", "decoder_start_token_id", "eos_token_id", "mask_token_id",
    "n_special", "pad_token_id", "prefix", "sep_token_id", "unk_token_id",
    // Lengths that do not change the function: GPT-2's mask, and the length in pretraining.
    "max_sequence_length", "max_window_layers", "model_max_length", "n_ctx",
    "original_max_position_embeddings",
    // Generation of text.
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens", "min_length",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens",
    "task_specific_params", "temperature", "top_k", "top_p", "typical_p"};

}  // namespace

bool is_ignored_transformers_key(std::string_view key) {
  return std::find(std::begin(ignored_keys), std::end(ignored_keys), key) != std::end(ignored_keys);
}

const std::vector<NeutralKey>& neutral_transformers_keys() {
  static const std::vector<NeutralKey> keys = {
      {"quantization_config", {}, "quantized weights are not read"},
      {"auto_map", {}, "the model has code of its own, which this program does not run"},
      {"add_cross_attention", {false}, "there is no cross attention"},
      {"cross_attention_hidden_size", {}, "there is no cross attention"},
      {"is_encoder_decoder", {false}, "there is no encoder"},
      {"pruned_heads", {nlohmann::json::object()}, "all heads are computed"},
      {"is_causal", {true}, "a token attends to no later one"},
      {"sliding_window", {}, "every token attends to all earlier ones"},
      {"use_sliding_window", {false}, "every token attends to all earlier ones"},
      {"partial_rotary_factor", {1}, "the whole head is rotated"},
      {"rotary_pct", {1}, "the whole head is rotated"},
      {"rope_interleaved", {false}, "the halves of a head are rotated"},
      {"no_rope_layer_interval", {}, "all layers have rotary positions"},
      {"clip_qkv", {}, "queries, keys and values are not clipped"},
      {"qk_layernorm", {false}, "queries and keys have no norm"},
      {"use_qk_norm", {false}, "queries and keys have no norm"},
      {"attn_logit_softcapping", {}, "logits are not capped"},
      {"final_logit_softcapping", {}, "logits are not capped"},
      {"query_pre_attn_scalar", {}, "attention is scaled by the width of a head"},
      {"attention_multiplier", {}, "attention is scaled by the width of a head"},
      {"embedding_multiplier", {1}, "embeddings are not scaled"},
      {"residual_multiplier", {1}, "residual branches are not scaled"},
      {"logits_scaling", {1}, "logits are not scaled"},
      {"num_experts", {0}, "there are no experts"},
      {"num_local_experts", {0}, "there are no experts"},
      {"n_routed_experts", {0}, "there are no experts"}};
  return keys;
}

}  // namespace trireme::checkpoint
