// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "model/chain/options.hpp"
#include "model/mlp/options.hpp"
#include "model/resnet/options.hpp"
#include "model/transformer/options.hpp"
#include "model/vit/options.hpp"
#include "trireme/base/error.hpp"
#include "trireme/model/family.hpp"
#include "trireme/model/keys.hpp"

namespace trireme::test {

/// Returns a model of the family that has these options.
template <class Options>
model::ModelOptions model_of(Options values) {
  for (const model::Family* family : model::families())
    if (family->defaults().type() == typeid(Options)) {
      model::ModelOptions options(*family);
      options.as<Options>() = std::move(values);
      return options;
    }
  throw Failure("no family has these options");
}

/// Returns a residual network in the CIFAR form.
inline model::ModelOptions resnet(int depth = 8, std::int64_t width = 8) {
  return model_of(
      model::ResnetOptions{.depth = depth, .width = width, .stem = model::ResnetStem::small});
}

inline model::ModelOptions mlp(std::vector<std::int64_t> widths) {
  return model_of(model::MlpOptions{std::move(widths)});
}

/// Gives a transformer Llama's form instead of GPT-2's, with half as many key and value heads.
inline void make_llama(model::ModelOptions& options) {
  auto& llama = options.as<model::TransformerOptions>();
  llama.kv_heads = llama.heads / 2;
  llama.mlp = model::MlpKind::swiglu;
  llama.norm = model::NormKind::rms;
  llama.positions = model::PositionKind::rope;
  llama.bias = llama.tie_embeddings = false;
}

/// A model that trains in milliseconds, and the shape of its input.
struct SmallModel {
  model::ModelOptions options;
  Shape input;  ///< [B, H, W, C]; text: [B, T]
  std::int64_t classes = 0;
};

/// Returns a transformer in GPT-2's form.
inline model::ModelOptions small_gpt2() {
  return model_of(model::TransformerOptions{.layers = 2,
                                            .heads = 4,
                                            .width = 24,
                                            .context = 6,
                                            .kv_heads = 4,
                                            .mlp_width = 40,
                                            .vocabulary = 37,
                                            .dropout = 0.1});
}

inline model::ModelOptions small_vit(model::VitPool pool = model::VitPool::token) {
  return model_of(model::VitOptions{.patch = 4,
                                    .layers = 2,
                                    .heads = 4,
                                    .width = 24,
                                    .mlp_ratio = 2,
                                    .pool = pool,
                                    .layer_scale = pool == model::VitPool::mean ? 0.5 : 0,
                                    .dropout = 0.1});
}

/// Returns the chain of these blocks, as model.blocks has them. Throws InputError.
inline model::ModelOptions chain(const std::string& blocks) {
  keys::Reader reader("model.kind = \"chain\"\nmodel.blocks = " + blocks, "deck.toml");
  model::ModelOptions options;
  model::visit_keys(reader, options);
  reader.finish();
  return options;
}

/// A residual network with every kind of block that takes pixels; `norm`: "batch" or "group".
inline model::ModelOptions chain_of_convolutions(const std::string& norm) {
  const std::string conv = "{ kind = \"conv\", kernel = 3, bias = false, channels = ",
                    norms = "{ kind = \"norm\", norm = \"" + norm + "\" }, ",
                    relu = "{ kind = \"activation\" }, ";
  return chain("[" + conv + "8 }, " + norms + relu +                                      //
               "{ kind = \"residual\", body = [" + conv + "12, stride = 2 }, " + norms +  //
               relu + conv + "12, dilation = 2, padding_mode = \"periodic\" }, " + norms + "] }, " +
               relu + "{ kind = \"residual\", drop_path = 0.2, body = [" + norms + relu + conv +
               "12 }] }, { kind = \"residual\", body = [" + conv +
               "12, padding_mode = \"periodic\" }] }, " +
               "{ kind = \"conv\", channels = 8, kernel = 2, padding_mode = \"periodic\" }, "
               "{ kind = \"activation\", activation = \"silu\" }, "
               "{ kind = \"upsample\", factor = 2 }, "
               "{ kind = \"conv\", channels = 6, kernel = 3, stride = 2, dilation = 2 }, "
               "{ kind = \"pool\", kernel = 3, stride = 1, padding = 1 }, "
               "{ kind = \"pool\", pool = \"mean\" }, { kind = \"flatten\" }, "
               "{ kind = \"dropout\", rate = 0.1 }, { kind = \"linear\", width = 5 }]");
}

/// A transformer and a mixer with every kind of block that takes tokens.
inline model::ModelOptions chain_of_tokens() {
  return chain(
      "[{ kind = \"patches\", patch = 2, width = 12 }, { kind = \"positions\" }, "
      "{ kind = \"residual\", repeat = 2, body = [{ kind = \"norm\", norm = \"layer\" }, "
      "{ kind = \"attention\", heads = 3 }] }, "
      "{ kind = \"residual\", body = [{ kind = \"norm\", norm = \"rms\" }, "
      "{ kind = \"linear\", width = 20 }, { kind = \"activation\", activation = \"gelu\" }, "
      "{ kind = \"linear\", width = 12, bias = false }] }, "
      "{ kind = \"residual\", body = [{ kind = \"transpose\" }, "
      "{ kind = \"linear\", width = 16 }, { kind = \"transpose\" }] }, "
      "{ kind = \"residual\", body = [{ kind = \"linear\", width = 10 }] }, "
      "{ kind = \"pool\", pool = \"global\" }, { kind = \"norm\", norm = \"layer\" }, "
      "{ kind = \"linear\", width = 5 }]");
}

/// Returns small models of all families, in their forms. Tests of properties that hold for every
/// model loop over them, so a new family is tested when it is added here.
inline std::vector<SmallModel> small_models() {
  const Shape images{10, 8, 8, 1}, text{3, 6};
  model::ModelOptions group = resnet(), llama = small_gpt2();
  group.as<model::ResnetOptions>().norm = model::ImageNormKind::group;
  make_llama(llama);
  return {{resnet(), images, 5},
          {group, images, 5},
          {mlp({32, 16}), images, 5},
          {small_vit(), images, 5},
          {small_vit(model::VitPool::mean), images, 5},
          {chain_of_convolutions("batch"), images, 5},
          {chain_of_convolutions("group"), images, 5},
          {chain_of_tokens(), images, 5},
          {small_gpt2(), text, 37},
          {llama, text, 37}};
}

}  // namespace trireme::test
