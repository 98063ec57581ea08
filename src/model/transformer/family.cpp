// SPDX-License-Identifier: Apache-2.0
//
// The family of transformers: keys, rules, defaults and sizes of model.kind = "gpt".
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "parts.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/family.hpp"

namespace trireme::model {
namespace {

using namespace keys;

constexpr double max_vocabulary = 1 << 24, max_head_tile_mb = 1 << 16, max_rope_base = 1e12;
// A row of zeros must not divide by zero in float32; a larger number would hide the variance.
constexpr double min_norm_epsilon = 1e-12, max_norm_epsilon = 0.1;

void visit_transformer(Visitor& v, ModelOptions& options) {
  auto& gpt = options.as<TransformerOptions>();
  v.field({"width", "gpt: sets the embedding width."}, integer(gpt.width, between(1, max_width)));
  v.field({"norm", "gpt: selects the normalization: layer or rms.", {}, nullptr, true},
          choice<NormKind>(gpt.norm, {{"layer", NormKind::layer}, {"rms", NormKind::rms}}));
  v.field({"drop_path",
           "Sets the probability that training drops the branch of the last residual block, from 0 "
           "to below 1; earlier blocks have less."},
          real(gpt.drop_path, half_open(0, 1)));
  v.field({"layers", "gpt: sets the number of transformer blocks."},
          integer(gpt.layers, between(1, max_layers)));
  v.field({"heads", "gpt: sets the number of attention heads; width must be a multiple of it."},
          integer(gpt.heads, between(1, max_width)));
  v.field({"kv_heads",
           "gpt: sets the number of key and value heads, which must divide heads; default: heads."},
          optional_integer(gpt.kv_heads, between(1, max_width)));
  v.field({"mlp_width",
           "gpt: sets the width of the mlp; default: 4 width, for swiglu 8/3 width rounded up to a "
           "multiple of 64."},
          optional_integer(gpt.mlp_width, between(1, max_length)));
  v.field({"context", "gpt: sets the length of a sample, in tokens."},
          integer(gpt.context, between(1, max_length)));
  v.field({"vocabulary", "gpt: sets the number of different tokens; default: that of data.train."},
          optional_integer(gpt.vocabulary, between(2, max_vocabulary)));
  v.field({"mlp", "gpt: selects the activation of the mlp: gelu or swiglu."},
          choice<MlpKind>(gpt.mlp, {{"gelu", MlpKind::gelu}, {"swiglu", MlpKind::swiglu}}));
  v.field({"positions",
           "gpt: selects the position encoding, learned or rope, and thereby GPT-2's or Llama's "
           "tensor names."},
          choice<PositionKind>(gpt.positions,
                               {{"learned", PositionKind::learned}, {"rope", PositionKind::rope}}));
  v.field({"rope_base",
           "gpt: sets the base of the frequencies of rotary positions; Llama 3 has 500000.",
           {gpt.positions == PositionKind::rope, "positions = \"rope\"", "model.positions"}},
          real(gpt.rope_base, between(1, max_rope_base)));
  v.field({"norm_epsilon",
           "gpt: sets the number that layer norm adds to the variance, and RMS norm to the mean of "
           "squares."},
          real(gpt.norm_epsilon, between(min_norm_epsilon, max_norm_epsilon)));
  v.field(
      {"bias",
       "gpt: gives linear layers a bias; default: true with learned positions, false with rope."},
      flag(gpt.bias));
  v.field({"tie_embeddings", "gpt: uses one table for token embedding and output layer."},
          flag(gpt.tie_embeddings));
  v.field(
      {"dropout",
       "gpt: sets the probability that an element is dropped during training, from 0 to below 1."},
      real(gpt.dropout, half_open(0, 1)));
  v.field({"head_tile_mb",
           "gpt: sets the MiB of float32 logits that are computed at once; default: 1024 on a GPU, "
           "32 on the CPU."},
          optional_integer(gpt.head_tile_mb, between(1, max_head_tile_mb)));
}

void fill_in_defaults(ModelOptions& options, const Reader& reader) {
  auto& gpt = options.as<TransformerOptions>();
  if (gpt.kv_heads == 0) gpt.kv_heads = gpt.heads;
  // SwiGLU has three matrices and GELU two, so 2/3 of the width has the same number of weights
  // (Shazeer 2020, section 2). The width is rounded up to a multiple of 64 for the tensor cores.
  if (gpt.mlp_width == 0)
    gpt.mlp_width = gpt.mlp == MlpKind::swiglu ? (8 * gpt.width / 3 + 63) / 64 * 64 : 4 * gpt.width;
  if (!reader.is_set("model.bias")) gpt.bias = gpt.positions == PositionKind::learned;
}

/// Returns the broken rules between width, heads and kv_heads. All extents are positive.
std::vector<BrokenRule> broken_head_rules(const TransformerOptions& gpt, const KeyNotes& notes) {
  std::vector<BrokenRule> broken;
  if (const auto rule = broken_head_rule(gpt.width, gpt.heads, notes))
    broken.push_back(*rule);
  else if (gpt.positions == PositionKind::rope && gpt.head_width() % 2 != 0)
    broken.push_back({notes.is_default("model.heads") && !notes.is_default("model.width")
                          ? "model.width"
                          : "model.heads",
                      fmt::format("positions = \"rope\" rotates pairs of numbers, but a head's "
                                  "width is model.width / model.heads = {}, which is odd; use "
                                  "model.width = {}",
                                  gpt.head_width(), nearest_multiples(gpt.width, 2 * gpt.heads))});
  if (gpt.heads % gpt.kv_heads != 0)
    broken.push_back({"model.kv_heads",
                      fmt::format("{} does not divide model.heads = {}{} (each key and value head "
                                  "serves the same number of heads); use {}",
                                  gpt.kv_heads, gpt.heads, notes("model.heads"),
                                  nearest_divisors(gpt.kv_heads, gpt.heads))});
  return broken;
}

void check_transformer(const ModelOptions& options, Reader& reader) {
  const auto& gpt = options.as<TransformerOptions>();
  if (!reader.any_wrong({"model.layers", "model.drop_path"}))
    if (const auto broken = broken_depth_rule(gpt.drop_path, gpt.layers, reader.notes()))
      reader.add_mistake(*broken);
  if (reader.any_wrong({"model.width", "model.heads", "model.kv_heads", "model.positions"})) return;
  for (const BrokenRule& broken : broken_head_rules(gpt, reader.notes()))
    reader.add_mistake(broken);
}

std::string describe_transformer(const ModelOptions& options) {
  const auto& gpt = options.as<TransformerOptions>();
  std::string text =
      fmt::format("gpt, {} of width {} (mlp {}), {}", counted(gpt.layers, "layer", "layers"),
                  gpt.width, gpt.mlp_width, counted(gpt.heads, "head", "heads"));
  if (gpt.kv_heads != gpt.heads) text += fmt::format(" ({} of keys and values)", gpt.kv_heads);
  return text + fmt::format(", context {}, vocabulary {}", gpt.context, gpt.vocabulary);
}

std::vector<BrokenRule> broken_rules(const ModelOptions& options) {
  const auto& gpt = options.as<TransformerOptions>();
  TRIREME_EXPECT(gpt.layers > 0 && gpt.heads > 0 && gpt.kv_heads > 0 && gpt.width > 0 &&
                 gpt.mlp_width > 0 && gpt.context > 0);
  return broken_head_rules(gpt, {});
}

std::vector<Extent> split_extents(const ModelOptions& options) {
  const auto& gpt = options.as<TransformerOptions>();
  return {{"model.heads", gpt.heads},
          {"model.kv_heads", gpt.kv_heads},
          {"model.mlp_width", gpt.mlp_width}};
}

std::vector<Extent> product_extents(const ModelOptions& options) {
  const auto& gpt = options.as<TransformerOptions>();
  return {
      {"model.width", gpt.width},
      {"the width of queries, keys and values", (gpt.heads + 2 * gpt.kv_heads) * gpt.head_width()},
      {"model.mlp_width", gpt.mlp_width}};
}

/// Each layer keeps keys and values.
std::vector<std::int64_t> cache_widths(const ModelOptions& options, int tensor_size) {
  const auto& gpt = options.as<TransformerOptions>();
  return std::vector<std::int64_t>(static_cast<std::size_t>(gpt.layers),
                                   2 * gpt.kv_heads / tensor_size * gpt.head_width());
}

bool lower_head_tile(ModelOptions& options, std::int64_t mb) {
  std::int64_t& limit = options.as<TransformerOptions>().head_tile_mb;
  if (limit > 0 && mb >= limit) return false;
  limit = mb;
  return true;
}

std::string_view linear_order_remark(const ModelOptions& options) {
  return options.as<TransformerOptions>().mlp == MlpKind::gelu
             ? "matrices are [out, in], as nanoGPT writes them; its GELU is the exact one, that of "
               "the deck's model is the tanh form"
             : "";
}

/// Returns the options of a block. The initial weights of the layers that end a branch shrink with
/// the number of layers (Radford et al. 2019, section 2.3).
AttentionBlockOptions block_options(const TransformerOptions& gpt, std::int64_t layer) {
  const TransformerNames names(gpt);
  AttentionBlockOptions options{
      .names = names.layer(layer),
      .index = layer,
      .context = gpt.context,
      .width = gpt.width,
      .heads = gpt.heads,
      .kv_heads = gpt.kv_heads,
      .mlp_width = gpt.mlp_width,
      .mask = ops::AttentionMask::causal,
      .mlp = gpt.mlp,
      .norm = gpt.norm,
      .norm_epsilon = gpt.norm_epsilon,
      .order = names.order,
      .qkv_bias = gpt.bias,
      .bias = gpt.bias,
      .branch_deviation = 0.02 / std::sqrt(2.0 * static_cast<double>(gpt.layers)),
      .dropout = gpt.dropout,
      .drop_path = drop_path_at(gpt.drop_path, layer, gpt.layers)};
  if (gpt.positions == PositionKind::rope) options.rotary_base = gpt.rope_base;
  return options;
}

/// Makes embedding, blocks of attention and mlp, and head.
ModelParts make_transformer(const ModelOptions& options, const Shape& /*input*/,
                            const AnswerExtents& /*outputs*/, const TensorPlacement& placement) {
  const auto& gpt = options.as<TransformerOptions>();
  ModelParts chain;
  const auto tie = std::make_shared<EmbeddingTie>();
  chain.blocks.push_back(make_embedding(gpt, placement, tie));
  for (std::int64_t layer = 0; layer < gpt.layers; ++layer)
    chain.blocks.push_back(make_attention_block(block_options(gpt, layer)));
  chain.head = make_transformer_head(gpt, tie);
  return chain;
}

constexpr const char* embedding_names[] = {"wte.weight", "model.embed_tokens.weight"};

std::optional<BrokenRule> broken_token_rows(const ModelOptions& /*options*/, const Shape& input,
                                            std::int64_t tensor, const KeyNotes& notes) {
  const std::int64_t micro = input[0], context = input[1];
  if (micro * context % tensor == 0) return std::nullopt;
  return BrokenRule{
      "parallel.sequence",
      fmt::format("true: batch.micro = {}{} x model.context = {}{} rows are not divisible "
                  "by parallel.tensor = {}; use batch.micro = {}, or sequence = false",
                  micro, notes.inner("batch.micro"), context, notes.inner("model.context"), tensor,
                  nearest_multiples(micro, tensor / std::gcd(tensor, context)))};
}

}  // namespace

extern constinit const Family transformer_family{
    .word = "gpt",
    .input = SampleKind::tokens,
    .generates = true,
    .computes_float8 = true,
    .size_advice = "a smaller model.width or fewer model.layers",
    .vocabulary_tables = embedding_names,
    .defaults = [] { return std::any(TransformerOptions()); },
    .visit = visit_transformer,
    .fill_in_defaults = fill_in_defaults,
    .check = check_transformer,
    .broken_rules = broken_rules,
    .describe = describe_transformer,
    .context = [](const ModelOptions& options) { return options.as<TransformerOptions>().context; },
    .vocabulary =
        [](const ModelOptions& options) { return options.as<TransformerOptions>().vocabulary; },
    .set_vocabulary =
        [](ModelOptions& options, std::int64_t count) {
          options.as<TransformerOptions>().vocabulary = count;
        },
    .split_extents = split_extents,
    .broken_row_rule = broken_token_rows,
    .product_extents = product_extents,
    .cache_widths = cache_widths,
    .lower_head_tile = lower_head_tile,
    .deck_lines = deck_lines,
    .transformers_config = transformers_config,
    .linear_order_remark = linear_order_remark,
    .reset_beside_weights =
        [](ModelOptions& options) {
          auto& transformer = options.as<TransformerOptions>();
          transformer.vocabulary = transformer.head_tile_mb = 0;
          transformer.dropout = transformer.drop_path = 0;
        },
    .classes_in =
        [](const ModelOptions& options, const Answer&, const Shape&, const ShapeInFile& shape_of) {
          const std::int64_t given = options.as<TransformerOptions>().vocabulary;
          return given > 0
                     ? given
                     : shape_of({std::begin(embedding_names), std::end(embedding_names)}, 2)[0];
        },
    .input_in =
        [](const ModelOptions& options, const ShapeInFile&) {
          return Shape{1, options.as<TransformerOptions>().context};
        },
    .make = make_transformer};

}  // namespace trireme::model
