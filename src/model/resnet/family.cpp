// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "../families.hpp"

namespace trireme::model {
namespace {

using namespace keys;

void visit_resnet(Visitor& v, ModelOptions& options) {
  ResnetOptions& resnet = options.resnet;
  // The CIFAR form has three stages of (depth - 2) / 6 blocks; the other depths are of the ImageNet
  // form (He et al. 2016, table 1).
  v.field({"depth",
           "resnet: sets the number of layers: 8, 14, 20, 26, 32, 38, 44, 56 (CIFAR form) or 18, "
           "34, 50, 101, 152; required.",
           {},
           "choose for instance depth = 20 (CIFAR form) or 50 (ImageNet form)"},
          one_of(resnet.depth, {8, 14, 18, 20, 26, 32, 34, 38, 44, 50, 56, 101, 152}));
  v.field({"width", "resnet: sets the channels of the first stage."},
          integer(resnet.width, between(1, max_width)));
  v.field({"stem",
           "resnet: selects the first layers: imagenet (7x7 convolution and pooling) or small (3x3 "
           "convolution)."},
          choice<ResnetStem>(resnet.stem,
                             {{"imagenet", ResnetStem::imagenet}, {"small", ResnetStem::small}}));
  v.field({"norm", "resnet: selects the normalization: batch or group.", {}, nullptr, true},
          choice<ResnetNorm>(resnet.norm,
                             {{"batch", ResnetNorm::batch}, {"group", ResnetNorm::group}}));
  v.field(
      {"zero_init_residual",
       "resnet: starts each residual branch with scale 0, so that blocks start as the identity."},
      flag(resnet.zero_init_residual));
  v.field({"drop_path",
           "Sets the probability that training drops the branch of the last residual block, from 0 "
           "to below 1; earlier blocks have less."},
          real(resnet.drop_path, half_open(0, 1)));
}

std::optional<BrokenRule> missing_batch_norm(const ModelOptions& options) {
  if (options.resnet.norm == ResnetNorm::batch) return std::nullopt;
  return BrokenRule{"model.norm",
                    "model.norm = \"group\" takes those of each sample by itself; use "
                    "sync_batch_norm = false, or norm = \"batch\""};
}

std::optional<BrokenRule> broken_joined_norms_rule(const ModelOptions& options) {
  const ResnetOptions& resnet = options.resnet;
  if (resnet.norm != ResnetNorm::batch)
    return BrokenRule{"model.norm",
                      "true joins batch norms, but model.norm = \"group\"; remove it, or use "
                      "norm = \"batch\""};
  if (resnet.drop_path > 0)
    return BrokenRule{
        "model.drop_path",
        fmt::format("true joins norms with the residual sum, but model.drop_path = {} scales "
                    "the branch behind its norm; remove it, or use drop_path = 0",
                    resnet.drop_path)};
  return std::nullopt;
}

}  // namespace

const Family resnet_family{
    .kind = ModelKind::resnet,
    .word = "resnet",
    .input = SampleKind::image,
    .splits_by_tensor = false,
    .generates = false,
    .computes_float8 = false,
    .flattens = false,
    .size_advice = "a smaller model.width",
    .visit = visit_resnet,
    .describe =
        [](const ModelOptions& options) {
          return fmt::format("resnet, depth {}, width {}", options.resnet.depth,
                             options.resnet.width);
        },
    .missing_batch_norm = missing_batch_norm,
    .broken_joined_norms_rule = broken_joined_norms_rule,
    .sizes_in = [](const ModelOptions& options, const ShapeInFile& shape_of) -> FileSizes {
      // no parameter depends on it
      const std::int64_t pixels = options.resnet.stem == ResnetStem::imagenet ? 224 : 32;
      return {{1, pixels, pixels, shape_of({"conv1.weight"}, 4)[1]}, shape_of({"fc.weight"}, 2)[0]};
    },
    .make = [](const ModelOptions& options, const Shape& input, std::int64_t classes,
               const TensorPlacement&) { return make_resnet(options.resnet, input, classes); }};

}  // namespace trireme::model
