// SPDX-License-Identifier: Apache-2.0
//
// Declares the keys of the tables [model] and [loss], and the rules between them.
#include "trireme/model/keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/model/rules.hpp"

namespace trireme::model {

using namespace keys;

namespace {

// Larger than any model in use, and small enough that products of extents cannot overflow.
constexpr double max_layers = 1024, max_width = 65536, max_length = 1 << 20,
                 max_vocabulary = 1 << 24, max_head_tile_mb = 1 << 16, max_rope_base = 1e12;
// A row of zeros must not divide by zero in float32; a larger number would hide the variance.
constexpr double min_norm_epsilon = 1e-12, max_norm_epsilon = 0.1;

constexpr std::int64_t max_extent = 1 << 20;
constexpr std::size_t max_listed_layers = 1024;

/// A list of layer widths, each from 1 to 2^20.
Field extents(std::vector<std::int64_t>& values) {
  const auto read = [&values](const Value& given) -> std::string {
    const auto array = given.list();
    if (!array) return given.wrong_type("an array of integers, as in [512, 256]");
    if (array->size() > max_listed_layers)
      return fmt::format("{} layers are too many; at most {}", array->size(), max_listed_layers);
    std::vector<std::int64_t> list;
    for (const Value& element : *array) {
      const auto integer = element.integer();
      if (!integer)
        return "must contain only integers, as in [512, 256]; here it contains " +
               std::string(element.type_name());
      if (*integer < 1 || *integer > max_extent)
        return fmt::format("{} is out of range; every extent must be at least 1 and at most {}",
                           *integer, max_extent);
      list.push_back(*integer);
    }
    values = std::move(list);
    return "";
  };
  return {read, [&values] { return fmt::format("[{}]", fmt::join(values, ", ")); },
          "list of integers",
          fmt::format("each at least 1 and at most {}; at most {} of them", max_extent,
                      max_listed_layers)};
}

/// Keys of [model] for kind = "gpt".
void visit_gpt(Visitor& v, const AppliesTo& condition, TransformerOptions& gpt) {
  v.field({"layers", "gpt: sets the number of transformer blocks.", condition},
          integer(gpt.layers, between(1, max_layers)));
  v.field({"heads", "gpt: sets the number of attention heads; width must be a multiple of it.",
           condition},
          integer(gpt.heads, between(1, max_width)));
  v.field({"kv_heads",
           "gpt: sets the number of key and value heads, which must divide heads; default: heads.",
           condition},
          optional_integer(gpt.kv_heads, between(1, max_width)));
  v.field({"mlp_width",
           "gpt: sets the width of the mlp; default: 4 width, for swiglu 8/3 width rounded up to a "
           "multiple of 64.",
           condition},
          optional_integer(gpt.mlp_width, between(1, max_length)));
  v.field({"context", "gpt: sets the length of a sample, in tokens.", condition},
          integer(gpt.context, between(1, max_length)));
  v.field({"vocabulary", "gpt: sets the number of different tokens; default: that of data.train.",
           condition},
          optional_integer(gpt.vocabulary, between(2, max_vocabulary)));
  v.field({"mlp", "gpt: selects the activation of the mlp: gelu or swiglu.", condition},
          choice<MlpKind>(gpt.mlp, {{"gelu", MlpKind::gelu}, {"swiglu", MlpKind::swiglu}}));
  v.field({"positions",
           "gpt: selects the position encoding, learned or rope, and thereby GPT-2's or Llama's "
           "tensor names.",
           condition},
          choice<PositionKind>(gpt.positions,
                               {{"learned", PositionKind::learned}, {"rope", PositionKind::rope}}));
  v.field({"rope_base",
           "gpt: sets the base of the frequencies of rotary positions; Llama 3 has 500000.",
           {condition.is_met && gpt.positions == PositionKind::rope, "positions = \"rope\"",
            "model.positions"}},
          real(gpt.rope_base, between(1, max_rope_base)));
  v.field({"norm_epsilon",
           "gpt: sets the number that layer norm adds to the variance, and RMS norm to the mean of "
           "squares.",
           condition},
          real(gpt.norm_epsilon, between(min_norm_epsilon, max_norm_epsilon)));
  v.field(
      {"bias",
       "gpt: gives linear layers a bias; default: true with learned positions, false with rope.",
       condition},
      flag(gpt.bias));
  v.field(
      {"tie_embeddings", "gpt: uses one table for token embedding and output layer.", condition},
      flag(gpt.tie_embeddings));
  v.field(
      {"dropout",
       "gpt: sets the probability that an element is dropped during training, from 0 to below 1.",
       condition},
      real(gpt.dropout, half_open(0, 1)));
  v.field({"head_tile_mb",
           "gpt: sets the MiB of float32 logits that are computed at once; default: 1024 on a GPU, "
           "32 on the CPU.",
           condition},
          optional_integer(gpt.head_tile_mb, between(1, max_head_tile_mb)));
}

}  // namespace

void visit_keys(Visitor& v, ModelOptions& model) {
  v.table("model");
  v.field({"kind", "Selects the kind of model: resnet, gpt (transformer) or mlp."},
          choice<ModelKind>(
              model.kind,
              {{"resnet", ModelKind::resnet}, {"mlp", ModelKind::mlp}, {"gpt", ModelKind::gpt}}));
  const bool is_resnet = model.kind == ModelKind::resnet, is_gpt = model.kind == ModelKind::gpt;
  const AppliesTo resnet{is_resnet, "kind = \"resnet\"", "model.kind"},
      mlp{model.kind == ModelKind::mlp, "kind = \"mlp\"", "model.kind"},
      gpt{is_gpt, "kind = \"gpt\"", "model.kind"},
      resnet_or_gpt{is_resnet || is_gpt, "kind = \"resnet\" or \"gpt\"", "model.kind"};
  // The CIFAR form has three stages of (depth - 2) / 6 blocks; the other depths are of the ImageNet
  // form (He et al. 2016, table 1).
  v.field({"depth",
           "resnet: sets the number of layers: 8, 14, 20, 26, 32, 38, 44, 56 (CIFAR form) or 18, "
           "34, 50, 101, 152; required.",
           resnet, "choose for instance depth = 20 (CIFAR form) or 50 (ImageNet form)"},
          one_of(model.resnet.depth, {8, 14, 18, 20, 26, 32, 34, 38, 44, 50, 56, 101, 152}));
  v.field({"width", "resnet: sets the channels of the first stage; gpt: sets the embedding width.",
           resnet_or_gpt},
          integer(is_gpt ? model.gpt.width : model.resnet.width, between(1, max_width)));
  v.field({"stem",
           "resnet: selects the first layers: imagenet (7x7 convolution and pooling) or small (3x3 "
           "convolution).",
           resnet},
          choice<ResnetStem>(model.resnet.stem,
                             {{"imagenet", ResnetStem::imagenet}, {"small", ResnetStem::small}}));
  v.field({"norm", "Selects the normalization: batch or group for resnet, layer or rms for gpt.",
           resnet_or_gpt, nullptr, true},
          is_gpt ? choice<NormKind>(model.gpt.norm,
                                    {{"layer", NormKind::layer}, {"rms", NormKind::rms}})
                 : choice<ResnetNorm>(model.resnet.norm, {{"batch", ResnetNorm::batch},
                                                          {"group", ResnetNorm::group}}));
  v.field(
      {"zero_init_residual",
       "resnet: starts each residual branch with scale 0, so that blocks start as the identity.",
       resnet},
      flag(model.resnet.zero_init_residual));
  v.field({"drop_path",
           "Sets the probability that training drops the branch of the last residual block, from 0 "
           "to below 1; earlier blocks have less.",
           resnet_or_gpt},
          real(is_gpt ? model.gpt.drop_path : model.resnet.drop_path, half_open(0, 1)));
  v.field({"widths", "mlp: lists the widths of the hidden layers, as in [512, 256]; required.", mlp,
           "give the extents of the hidden layers, as in widths = [512, 256]"},
          extents(model.mlp.widths));
  visit_gpt(v, gpt, model.gpt);
}

void visit_keys(Visitor& v, LossOptions& loss) {
  v.table("loss");
  v.field({"label_smoothing",
           "Sets the share of the label's probability that is spread over all classes, from 0 to "
           "below 1."},
          real(loss.label_smoothing, half_open(0, 1)));
}

namespace {

/// Requires a second residual block for stochastic depth, whose probability is 0 at the first.
void check_drop_path(const ModelOptions& model, Reader& reader) {
  if (reader.any_wrong({"model.kind", "model.layers", "model.drop_path"})) return;
  const TransformerOptions& gpt = model.gpt;
  if (model.kind == ModelKind::gpt && gpt.drop_path > 0 && gpt.layers == 1)
    reader.add_mistake(
        "model.drop_path",
        fmt::format("{} is the probability at the last block, and 0 that at the "
                    "first, but model.layers = 1{}; use drop_path = 0, or layers = 2",
                    gpt.drop_path, reader.notes()("model.layers")));
}

}  // namespace

void check_keys(const ModelOptions& model, Reader& reader) {
  check_drop_path(model, reader);
  if (model.kind != ModelKind::gpt || reader.any_wrong({"model.kind", "model.width", "model.heads",
                                                        "model.kv_heads", "model.positions"}))
    return;
  for (const BrokenRule& broken : broken_head_rules(model.gpt, reader.notes()))
    reader.add_mistake(broken);
}

}  // namespace trireme::model
