// SPDX-License-Identifier: Apache-2.0
//
// The family of transformers: keys, rules, defaults and sizes of model.kind = "gpt".
#include <fmt/format.h>

#include "../families.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/rules.hpp"

namespace trireme::model {
namespace {

using namespace keys;

constexpr double max_vocabulary = 1 << 24, max_head_tile_mb = 1 << 16, max_rope_base = 1e12;
// A row of zeros must not divide by zero in float32; a larger number would hide the variance.
constexpr double min_norm_epsilon = 1e-12, max_norm_epsilon = 0.1;

void visit_transformer(Visitor& v, ModelOptions& options) {
  TransformerOptions& gpt = options.gpt;
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
  TransformerOptions& gpt = options.gpt;
  if (gpt.kv_heads == 0) gpt.kv_heads = gpt.heads;
  // SwiGLU has three matrices and GELU two, so 2/3 of the width has the same number of weights
  // (Shazeer 2020, section 2). The width is rounded up to a multiple of 64 for the tensor cores.
  if (gpt.mlp_width == 0)
    gpt.mlp_width = gpt.mlp == MlpKind::swiglu ? (8 * gpt.width / 3 + 63) / 64 * 64 : 4 * gpt.width;
  if (!reader.is_set("model.bias")) gpt.bias = gpt.positions == PositionKind::learned;
}

/// Requires a second residual block for stochastic depth, whose probability is 0 at the first.
void check_drop_path(const TransformerOptions& gpt, Reader& reader) {
  if (reader.any_wrong({"model.layers", "model.drop_path"})) return;
  if (gpt.drop_path > 0 && gpt.layers == 1)
    reader.add_mistake(
        "model.drop_path",
        fmt::format("{} is the probability at the last block, and 0 that at the "
                    "first, but model.layers = 1{}; use drop_path = 0, or layers = 2",
                    gpt.drop_path, reader.notes()("model.layers")));
}

void check_transformer(const ModelOptions& options, Reader& reader) {
  check_drop_path(options.gpt, reader);
  if (reader.any_wrong({"model.width", "model.heads", "model.kv_heads", "model.positions"})) return;
  for (const BrokenRule& broken : broken_head_rules(options.gpt, reader.notes()))
    reader.add_mistake(broken);
}

std::string describe_transformer(const ModelOptions& options) {
  const TransformerOptions& gpt = options.gpt;
  std::string text =
      fmt::format("gpt, {} of width {} (mlp {}), {}", counted(gpt.layers, "layer", "layers"),
                  gpt.width, gpt.mlp_width, counted(gpt.heads, "head", "heads"));
  if (gpt.kv_heads != gpt.heads) text += fmt::format(" ({} of keys and values)", gpt.kv_heads);
  return text + fmt::format(", context {}, vocabulary {}", gpt.context, gpt.vocabulary);
}

}  // namespace

const Family transformer_family{
    .kind = ModelKind::gpt,
    .word = "gpt",
    .input = SampleKind::tokens,
    .splits_by_tensor = true,
    .generates = true,
    .computes_float8 = true,
    .flattens = false,
    .size_advice = "a smaller model.width or fewer model.layers",
    .visit = visit_transformer,
    .fill_in_defaults = fill_in_defaults,
    .check = check_transformer,
    .describe = describe_transformer,
    .missing_batch_norm = no_batch_norm,
    .broken_joined_norms_rule = no_joined_norms,
    .context = [](const ModelOptions& options) { return options.gpt.context; },
    .vocabulary = [](const ModelOptions& options) { return options.gpt.vocabulary; },
    .set_vocabulary = [](ModelOptions& options,
                         std::int64_t count) { options.gpt.vocabulary = count; },
    .max_tensor_size = [](const ModelOptions& options) { return max_tensor_size(options.gpt); },
    .sizes_in = [](const ModelOptions& options, const ShapeInFile& shape_of) -> FileSizes {
      const TransformerOptions& gpt = options.gpt;
      const auto rows = [&] { return shape_of({"wte.weight", "model.embed_tokens.weight"}, 2)[0]; };
      return {{1, gpt.context}, gpt.vocabulary > 0 ? gpt.vocabulary : rows()};
    },
    .make =
        [](const ModelOptions& options, const Shape&, std::int64_t,
           const TensorPlacement& placement) { return make_transformer(options.gpt, placement); }};

}  // namespace trireme::model
