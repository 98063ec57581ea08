// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes config.json of Hugging Face's transformers: the families of GPT-2 and of Llama.
//
// A family is a table of names, a function that reads its members with the defaults of
// transformers, and the conditions under which Trireme computes the same function. A key that is
// neither read nor known to be without effect (transformers_keys.hpp) is refused. All problems of a
// file are collected and reported together. Called by `trireme import` and `trireme export`.
#include "trireme/checkpoint/weights/transformers_config.hpp"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "transformers_keys.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/json.hpp"

namespace trireme::checkpoint {
namespace {

using Json = nlohmann::json;
using Family = TransformersConfig::Family;

// Label names of a classifier are the longest lists; rope_parameters nest by kind of layer.
constexpr io::JsonLimits config_limits{
    .bytes = std::int64_t{1} << 20, .depth = 16, .values = 200'000, .members = 100'000};
// Products of two extents cannot overflow.
constexpr std::int64_t max_count = 1 << 30;

constexpr const char* model_type = "model_type";

/// The names of members; a member without a name of its own follows from `model_type`.
struct TransformersKeys {
  const char *layers, *heads, *kv_heads, *width, *mlp_width, *vocabulary, *context, *norm_epsilon,
      *rope_base, *bias, *tie_embeddings;
};
constexpr TransformersKeys gpt2_keys{.layers = "n_layer",
                                     .heads = "n_head",
                                     .kv_heads = model_type,
                                     .width = "n_embd",
                                     .mlp_width = "n_inner",
                                     .vocabulary = "vocab_size",
                                     .context = "n_positions",
                                     .norm_epsilon = "layer_norm_epsilon",
                                     .rope_base = model_type,
                                     .bias = model_type,
                                     .tie_embeddings = "tie_word_embeddings"};
constexpr TransformersKeys llama_keys{.layers = "num_hidden_layers",
                                      .heads = "num_attention_heads",
                                      .kv_heads = "num_key_value_heads",
                                      .width = "hidden_size",
                                      .mlp_width = "intermediate_size",
                                      .vocabulary = "vocab_size",
                                      .context = "max_position_embeddings",
                                      .norm_epsilon = "rms_norm_eps",
                                      .rope_base = "rope_theta",
                                      .bias = "attention_bias",
                                      .tie_embeddings = "tie_word_embeddings"};

std::string shown(const Json& value) {
  constexpr std::size_t max_shown_bytes = 80;
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), max_shown_bytes);
}

/// Returns the number whose float32 has the fewest digits: programs also write float32 numbers as
/// doubles, 9.999999747378752e-06 for 1e-05.
double without_noise(double value) {
  return std::stod(fmt::format("{}", static_cast<float>(value)));
}

/// Reads members of an object and collects what is wrong with them. null is a missing member.
/// Remembers which members were asked for.
class MemberReader {
 public:
  MemberReader(const Json& object, std::vector<std::string>& problems)
      : object_(object), problems_(problems) {}

  bool is_null(const char* key) const { return object_.contains(key) && object_[key].is_null(); }
  bool has(const char* key) {
    asked_.insert(key);
    return object_.contains(key) && !object_[key].is_null();
  }

  std::int64_t count(const char* key, std::int64_t fallback) {
    if (!has(key)) return fallback;
    const Json& value = object_[key];
    if (value.is_number_unsigned() && value.get<std::uint64_t>() >= 1 &&
        value.get<std::uint64_t>() <= max_count)
      return value.get<std::int64_t>();
    refuse(key, fmt::format("must be a whole number from 1 to {}", max_count));
    return std::max<std::int64_t>(fallback, 1);
  }
  double number(const char* key, double fallback) {
    if (!has(key)) return fallback;
    const Json& value = object_[key];
    // A number beyond float32 would be infinite in the program.
    if (value.is_number() && value.get<double>() > 0 && value.get<double>() < 3e38)
      return without_noise(value.get<double>());
    refuse(key, "must be a positive number");
    return fallback;
  }
  /// As in Python, null is false.
  bool flag(const char* key, bool fallback) {
    if (!has(key)) return fallback && !is_null(key);
    if (object_[key].is_boolean()) return object_[key].get<bool>();
    refuse(key, "must be true or false");
    return fallback;
  }

  /// Reads a count that has two names, of which both may be there.
  std::int64_t count(const char* key, const char* alias, std::int64_t fallback) {
    const std::int64_t value = count(key, fallback);
    if (!has(alias)) return value;
    const std::int64_t other = count(alias, value);
    if (has(key) && other != value) refuse(alias, fmt::format("contradicts {} = {}", key, value));
    return other;
  }

  /// Requires that a member is missing or has one of the values; `why` says what is computed.
  void require(const char* key, const std::vector<Json>& values, const char* why) {
    if (has(key) && std::find(values.begin(), values.end(), object_[key]) == values.end())
      refuse(key, why);
  }
  /// Refuses the members that were not asked for and are not known to be without effect.
  void refuse_unknown() {
    for (const auto& [key, value] : object_.items())
      if (!value.is_null() && !asked_.contains(key) && !is_ignored_transformers_key(key))
        problems_.push_back(fmt::format(
            "{} = {}: is no key that is known here, so it may change what the model computes; "
            "remove it from the file if it does not",
            printable(key), shown(value)));
  }
  /// Adds a problem of a member that is there.
  void refuse(const char* key, std::string_view why) {
    TRIREME_EXPECT(object_.contains(key));
    problems_.push_back(fmt::format("{} = {}: {}", key, shown(object_[key]), why));
  }
  const Json& operator[](const char* key) const { return object_[key]; }

 private:
  const Json& object_;
  std::vector<std::string>& problems_;
  std::set<std::string, std::less<>> asked_;
};

TransformersConfig read_gpt2(MemberReader& config) {
  // The names of other families are aliases (attribute_map in transformers).
  const TransformersKeys& keys = gpt2_keys;
  TransformersConfig model{.family = Family::gpt2,
                           .layers = config.count(keys.layers, llama_keys.layers, 12),
                           .heads = config.count(keys.heads, llama_keys.heads, 12),
                           .width = config.count(keys.width, llama_keys.width, 768),
                           .vocabulary = config.count(keys.vocabulary, 50257),
                           .context = config.count(keys.context, llama_keys.context, 1024),
                           .norm_epsilon = config.number(keys.norm_epsilon, 1e-5),
                           .tie_embeddings = config.flag(keys.tie_embeddings, true)};
  model.kv_heads = model.heads;
  model.mlp_width = config.count(keys.mlp_width, 4 * model.width);
  // All of them are the tanh form, rounded differently.
  config.require(
      "activation_function",
      {"gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"},
      "the tanh form of GELU alone is computed (\"gelu_new\")");
  if (!config.flag("scale_attn_weights", true))
    config.refuse("scale_attn_weights", "attention is always scaled");
  config.require("scale_attn_by_inverse_layer_idx", {false}, "all layers have the same scale");
  return model;
}

/// Returns whether the parameters of rotary positions have none but the base.
bool has_plain_rotation(const Json& parameters) {
  if (!parameters.is_object()) return false;
  for (const auto& [name, value] : parameters.items()) {
    const bool is_plain = name == "type" || name == "rope_type" ? value == "default"
                          : name == "partial_rotary_factor"     ? value == 1
                                                                : name == "rope_theta";
    if (!is_plain && !value.is_null()) return false;
  }
  return true;
}

/// Reads the base of rotary positions, in the form of transformers 4 (rope_theta, rope_scaling) and
/// of 5 (rope_parameters).
double read_rope_base(MemberReader& config, std::vector<std::string>& problems) {
  double base = config.number(llama_keys.rope_base, 10000);
  bool is_given = config.has(llama_keys.rope_base);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.has(key)) continue;
    const Json& value = config[key];
    if (!has_plain_rotation(value)) {
      config.refuse(key,
                    "rotary positions are computed in their plain form alone, without scaling");
      continue;
    }
    MemberReader members(value, problems);
    const double own = members.number("rope_theta", base);
    if (is_given && own != base)
      config.refuse(key, fmt::format("contradicts {} = {}", llama_keys.rope_base, base));
    is_given = is_given || members.has("rope_theta");
    base = own;
  }
  return base;
}

bool has_only(const Json& list, const Json& value) {
  return list.is_array() &&
         std::all_of(list.begin(), list.end(), [&](const Json& entry) { return entry == value; });
}

TransformersConfig read_llama(MemberReader& config, bool is_mistral,
                              std::vector<std::string>& problems) {
  const TransformersKeys& keys = llama_keys;
  TransformersConfig model{.family = Family::llama,
                           .layers = config.count(keys.layers, 32),
                           .heads = config.count(keys.heads, 32),
                           .width = config.count(keys.width, 4096),
                           .mlp_width = config.count(keys.mlp_width, is_mistral ? 14336 : 11008),
                           .vocabulary = config.count(keys.vocabulary, 32000),
                           .context = config.count(keys.context, is_mistral ? 4096 * 32 : 2048),
                           .norm_epsilon = config.number(keys.norm_epsilon, 1e-6),
                           .rope_base = read_rope_base(config, problems),
                           .bias = config.flag(keys.bias, false),
                           .tie_embeddings = config.flag(keys.tie_embeddings, false)};
  const bool has_default_of_mistral = is_mistral && !config.is_null(keys.kv_heads);
  model.kv_heads = config.count(keys.kv_heads, has_default_of_mistral ? 8 : model.heads);
  if (config.flag("mlp_bias", false) != model.bias)
    problems.push_back(
        fmt::format("{} = {} with mlp_bias = {}: all linear layers have a bias, or "
                    "none has",
                    keys.bias, model.bias, !model.bias));
  if (config.has("head_dim") && config.count("head_dim", 1) * model.heads != model.width)
    config.refuse("head_dim", fmt::format("the width of a head is {} / {} = {} / {}", keys.width,
                                          keys.heads, model.width, model.heads));
  config.require("hidden_act", {"silu", "swish"}, "SwiGLU alone is computed (\"silu\")");
  if (is_mistral && !config.has("sliding_window") && !config.is_null("sliding_window"))
    problems.emplace_back(
        "sliding_window is missing, which is a window of 4096 tokens: every token "
        "attends to all earlier ones (\"sliding_window\": null)");
  if (config.has("layer_types") && !has_only(config["layer_types"], "full_attention"))
    config.refuse("layer_types", "all layers have full attention");
  if (config.has("no_rope_layers") && !has_only(config["no_rope_layers"], 1))
    config.refuse("no_rope_layers", "all layers have rotary positions");
  return model;
}

/// Returns the model type, from the class of the model if the key is missing; null if neither is
/// there.
Json type_of(MemberReader& config) {
  if (config.has(model_type)) return config[model_type];
  if (!config.has("architectures") || !config["architectures"].is_array()) return {};
  constexpr std::pair<const char*, const char*> classes[] = {{"GPT2LMHeadModel", "gpt2"},
                                                             {"LlamaForCausalLM", "llama"},
                                                             {"MistralForCausalLM", "mistral"}};
  for (const auto& [name, type] : classes)
    if (config["architectures"] == Json::array({name})) return type;
  return {};
}

}  // namespace

const char* deciding_member(Family family, std::string_view key) {
  const TransformersKeys& keys = family == Family::gpt2 ? gpt2_keys : llama_keys;
  const std::pair<std::string_view, const char*> names[] = {
      {"model.layers", keys.layers},
      {"model.heads", keys.heads},
      {"model.kv_heads", keys.kv_heads},
      {"model.width", keys.width},
      {"model.mlp_width", keys.mlp_width},
      {"model.vocabulary", keys.vocabulary},
      {"model.context", keys.context},
      {"model.norm_epsilon", keys.norm_epsilon},
      {"model.rope_base", keys.rope_base},
      {"model.bias", keys.bias},
      {"model.tie_embeddings", keys.tie_embeddings}};
  const auto* found = std::ranges::find(names, key, [](const auto& name) { return name.first; });
  return found == std::end(names) ? model_type : found->second;
}

std::optional<TransformersConfig> read_transformers_config(const std::string& path) {
  const Json object = io::parse_json_object<Json>(io::read_text_file(path, config_limits.bytes),
                                                  path, config_limits);
  std::vector<std::string> problems;
  MemberReader config(object, problems);
  const Json type = type_of(config);
  if (type.is_null()) return std::nullopt;
  std::optional<TransformersConfig> model;
  if (type == "gpt2" || type == "llama" || type == "mistral") {
    model = type == "gpt2" ? read_gpt2(config) : read_llama(config, type == "mistral", problems);
    for (const NeutralKey& rule : neutral_transformers_keys())
      config.require(rule.key, rule.values, rule.computed);
    config.refuse_unknown();
  } else {
    config.refuse(model_type, "\"gpt2\", \"llama\" and \"mistral\" are computed");
  }
  validate(problems.empty(),
           "{}: describes a model that this program does not compute, or not as it is written:\n  "
           "{}",
           path, fmt::join(problems, "\n  "));
  return model;
}

std::string to_json(const TransformersConfig& config) {
  const bool is_gpt2 = config.family == Family::gpt2;
  const TransformersKeys& keys = is_gpt2 ? gpt2_keys : llama_keys;
  nlohmann::ordered_json json = {
      {"architectures", {is_gpt2 ? "GPT2LMHeadModel" : "LlamaForCausalLM"}},
      {model_type, is_gpt2 ? "gpt2" : "llama"},
      {keys.layers, config.layers},
      {keys.heads, config.heads},
      {keys.width, config.width},
      {keys.mlp_width, config.mlp_width},
      {keys.context, config.context},
      {keys.vocabulary, config.vocabulary},
      {keys.norm_epsilon, config.norm_epsilon},
      {keys.tie_embeddings, config.tie_embeddings},
      // The defaults of transformers may be beyond the vocabulary.
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr}};
  if (is_gpt2) {
    json["activation_function"] = "gelu_new";
    for (const char* key : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) json[key] = config.dropout;
  } else {
    json[keys.kv_heads] = config.kv_heads;
    json["head_dim"] = config.width / config.heads;
    json["hidden_act"] = "silu";
    json[keys.bias] = json["mlp_bias"] = config.bias;
    json["attention_dropout"] = config.dropout;
    // The first is the name in transformers 4, the second in 5.
    json[keys.rope_base] = config.rope_base;
    json["rope_parameters"] = {{"rope_theta", config.rope_base}, {"rope_type", "default"}};
  }
  return json.dump(2) + "\n";
}

}  // namespace trireme::checkpoint
