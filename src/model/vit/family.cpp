// SPDX-License-Identifier: Apache-2.0
//
// The family of vision transformers: keys, rules and sizes of model.kind = "vit".
#include <memory>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "model/attention_block.hpp"
#include "parts.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/family.hpp"

namespace trireme::model {
namespace {

using namespace keys;

constexpr double max_patch = 1024, min_mlp_ratio = 0.0625, max_mlp_ratio = 64;

void visit_vit(Visitor& v, ModelOptions& options) {
  auto& vit = options.as<VitOptions>();
  v.field({"patch",
           "vit: sets the rows and columns of pixels of a patch, which must divide the image."},
          integer(vit.patch, between(1, max_patch)));
  v.field({"layers", "vit: sets the number of transformer blocks."},
          integer(vit.layers, between(1, max_layers)));
  v.field({"heads", "vit: sets the number of attention heads; width must be a multiple of it."},
          integer(vit.heads, between(1, max_width)));
  v.field({"width", "vit: sets the embedding width."}, integer(vit.width, between(1, max_width)));
  v.field({"mlp_ratio", "vit: sets the width of the mlp as a multiple of the embedding width."},
          real(vit.mlp_ratio, between(min_mlp_ratio, max_mlp_ratio)));
  v.field({"pool",
           "vit: selects the input of the classifier: token (a class token) or mean (of the "
           "patches); in a map only the blocks read the token."},
          choice<VitPool>(vit.pool, {{"token", VitPool::token}, {"mean", VitPool::mean}}));
  v.field({"qkv_bias", "vit: gives queries, keys and values a bias."}, flag(vit.qkv_bias));
  v.field({"layer_scale",
           "vit: multiplies each column of a residual branch by a trained factor with this start "
           "value (LayerScale), from 0 to 1; 0: no factors."},
          real(vit.layer_scale, between(0, 1)));
  v.field({"dropout",
           "vit: sets the probability that an element is dropped during training, from 0 to below "
           "1."},
          real(vit.dropout, half_open(0, 1)));
  v.field({"drop_path",
           "Sets the probability that training drops the branch of the last residual block, from 0 "
           "to below 1; earlier blocks have less."},
          real(vit.drop_path, half_open(0, 1)));
  v.field({"zero_init_head", "vit: starts the weights of the classifier at 0."},
          flag(vit.zero_init_head));
}

/// Returns the broken rule between model.mlp_ratio and model.width.
std::optional<BrokenRule> broken_mlp_rule(const VitOptions& vit, const KeyNotes& notes) {
  if (vit.mlp_width() > 0) return std::nullopt;
  return BrokenRule{"model.mlp_ratio",
                    fmt::format("{} of model.width = {}{} leaves the mlp without a unit; use "
                                "mlp_ratio = 4",
                                vit.mlp_ratio, vit.width, notes("model.width"))};
}

void check_vit(const ModelOptions& options, Reader& reader) {
  const auto& vit = options.as<VitOptions>();
  const auto require = [&](const std::optional<BrokenRule>& broken) {
    if (broken) reader.add_mistake(*broken);
  };
  if (!reader.any_wrong({"model.layers", "model.drop_path"}))
    require(broken_depth_rule(vit.drop_path, vit.layers, reader.notes()));
  if (reader.any_wrong({"model.width"})) return;
  if (!reader.any_wrong({"model.heads"}))
    require(broken_head_rule(vit.width, vit.heads, reader.notes()));
  if (!reader.any_wrong({"model.mlp_ratio"})) require(broken_mlp_rule(vit, reader.notes()));
}

std::vector<BrokenRule> broken_vit_rules(const ModelOptions& options) {
  const auto& vit = options.as<VitOptions>();
  TRIREME_EXPECT(vit.patch > 0 && vit.layers > 0 && vit.heads > 0 && vit.width > 0);
  std::vector<BrokenRule> broken;
  for (const auto& rule : {broken_head_rule(vit.width, vit.heads, {}), broken_mlp_rule(vit, {})})
    if (rule) broken.push_back(*rule);
  return broken;
}

std::string describe_vit(const ModelOptions& options) {
  const auto& vit = options.as<VitOptions>();
  return fmt::format("vit, patches of {0} x {0}, {1} of width {2} (mlp {3}), {4}", vit.patch,
                     counted(vit.layers, "layer", "layers"), vit.width, vit.mlp_width(),
                     counted(vit.heads, "head", "heads"));
}

AttentionBlockOptions block_options(const VitOptions& vit, std::int64_t layer,
                                    std::int64_t context) {
  const std::string block = fmt::format("blocks.{}", layer);
  return {.names = {.block = block,
                    .attention_norm = block + ".norm1",
                    .projection = block + ".attn.proj",
                    .mlp_norm = block + ".norm2",
                    .down = block + ".mlp.fc2",
                    .qkv = {block + ".attn.qkv"},
                    .up = {block + ".mlp.fc1"},
                    .attention_scale = block + ".ls1",
                    .mlp_scale = block + ".ls2"},
          .index = layer,
          .context = context,
          .width = vit.width,
          .heads = vit.heads,
          .kv_heads = vit.heads,
          .mlp_width = vit.mlp_width(),
          .gelu = ops::Gelu::exact,
          .norm_epsilon = vit_norm_epsilon,
          .qkv_bias = vit.qkv_bias,
          .branch_deviation = vit_deviation,
          .deviation = vit_deviation,
          .layer_scale = vit.layer_scale,
          .dropout = vit.dropout,
          .drop_path = drop_path_at(vit.drop_path, layer, vit.layers)};
}

ops::PatchRows patches_of(const VitOptions& vit, const Shape& input) {
  return {.height = input[1],
          .width = input[2],
          .channels = input[3],
          .patch = vit.patch,
          .leading = vit.leading_rows()};
}

std::optional<BrokenRule> broken_vit_rows(const ModelOptions& options, const Shape& input,
                                          std::int64_t tensor, const KeyNotes& notes) {
  const std::int64_t micro = input[0],
                     rows = patches_of(options.as<VitOptions>(), input).rows_of_sample();
  if (micro * rows % tensor == 0) return std::nullopt;
  return BrokenRule{
      "parallel.sequence",
      fmt::format("true: batch.micro = {}{} x {} rows of a sample (patches and class token) are "
                  "not divisible by parallel.tensor = {}; use batch.micro = {}, or sequence = "
                  "false",
                  micro, notes.inner("batch.micro"), rows, tensor,
                  nearest_multiples(micro, tensor / std::gcd(rows, tensor)))};
}

/// Makes the patch embedding, blocks of attention and mlp, and the head.
ModelParts make_vit(const ModelOptions& options, const Shape& input, const AnswerExtents& outputs,
                    const TensorPlacement& placement) {
  const auto& vit = options.as<VitOptions>();
  const std::int64_t height = input[1], width = input[2];
  validate(height % vit.patch == 0 && width % vit.patch == 0,
           "model.patch: {} does not divide images of {} x {} pixels; use patch = {}, or images of "
           "another size",
           vit.patch, height, width, nearest_divisors(vit.patch, std::gcd(height, width)));
  const ops::PatchRows patches = patches_of(vit, input);
  const std::int64_t rows = patches.rows_of_sample();
  const int split = placement.sequence_parallel ? placement.tensor_size : 1;
  ModelParts parts;
  parts.blocks.push_back(make_patch_embedding(vit, patches, split));
  for (std::int64_t layer = 0; layer < vit.layers; ++layer)
    parts.blocks.push_back(make_attention_block(block_options(vit, layer, rows)));
  if (outputs.is_map()) {
    ops::PatchRows of_map = patches;
    of_map.channels = outputs.count;
    parts.head = make_vit_map_head(vit, of_map);
  } else {
    parts.head = make_vit_head(vit, rows, outputs.count);
  }
  return parts;
}

constexpr ForeignTensor foreign_tensors[] = {
    {"dist_token", "a distilled DeiT with two heads"},
    {"reg_token", "a vision transformer with register tokens"},
    {"norm_pre.weight", "a vision transformer with a norm in front of its blocks, as in CLIP"},
    {"attn.q_norm.weight", "a vision transformer with norms of queries and keys"},
    {"rel_pos_bias.relative_position_bias_table", "a transformer with relative positions"}};

/// Takes the grid of patches, which must be square, from the position embedding.
Shape input_in(const ModelOptions& options, const ShapeInFile& shape_of) {
  const auto& vit = options.as<VitOptions>();
  const std::int64_t rows = shape_of({"pos_embed"}, 3)[1];
  const auto grid = parallel::square_grid(rows, vit.leading_rows());
  const bool has_token = vit.leading_rows() > 0;
  validate(grid.has_value(),
           "the tensor pos_embed has {} rows, which are no square of patches{}; {}use a file of a "
           "model of square images",
           rows, has_token ? " and a class token" : "",
           parallel::square_grid(rows, has_token ? 0 : 1)
               ? fmt::format("use model.pool = \"{}\", or ", has_token ? "mean" : "token")
               : "");
  const std::int64_t pixels = grid->height * vit.patch;
  return {1, pixels, pixels, shape_of({"patch_embed.proj.weight"}, 4)[1]};
}

std::int64_t classes_in(const ModelOptions& options, const Answer& answer, const Shape& /*input*/,
                        const ShapeInFile& shape_of) {
  const std::int64_t outputs = shape_of({"head.weight"}, 2)[0];
  if (!answer.is_map) return outputs;
  const std::int64_t patch = options.as<VitOptions>().patch;
  validate(outputs % (patch * patch) == 0,
           "the tensor head.weight has {} rows, which are not those of the {} pixels of a patch; "
           "use a file of a model of maps with this model.patch",
           outputs, patch * patch);
  return outputs / (patch * patch);
}

}  // namespace

extern constinit const Family vit_family{
    .word = "vit",
    .size_advice = "a smaller model.width or fewer model.layers",
    .map_advice = "use targets with as many pixels as the samples, or model.kind = \"chain\"",
    .foreign_tensors = foreign_tensors,
    .defaults = [] { return std::any(VitOptions()); },
    .visit = visit_vit,
    .check = check_vit,
    .broken_rules = broken_vit_rules,
    .describe = describe_vit,
    .split_extents = [](const ModelOptions& options) -> std::vector<Extent> {
      const auto& vit = options.as<VitOptions>();
      return {{"model.heads", vit.heads}, {"the width of the mlp", vit.mlp_width()}};
    },
    .broken_row_rule = broken_vit_rows,
    .product_extents = [](const ModelOptions& options) -> std::vector<Extent> {
      const auto& vit = options.as<VitOptions>();
      return {{"model.width", vit.width}, {"the width of the mlp", vit.mlp_width()}};
    },
    .reset_beside_weights =
        [](ModelOptions& options) {
          auto& vit = options.as<VitOptions>();
          if (vit.layer_scale != 0) vit.layer_scale = 1;  // 0 has no factors
          vit.dropout = vit.drop_path = 0;
          vit.zero_init_head = false;
        },
    .classes_in = classes_in,
    .input_in = input_in,
    .map_of = [](const ModelOptions&, const Shape& input) -> Shape { return {input[1], input[2]}; },
    .make = make_vit};

}  // namespace trireme::model
