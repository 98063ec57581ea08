// SPDX-License-Identifier: Apache-2.0
#include "trireme/model/rules.hpp"

#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/text.hpp"
#include "trireme/model/family.hpp"

namespace trireme::model {

std::int64_t max_tensor_size(const TransformerOptions& gpt) {
  return std::gcd(std::gcd(gpt.heads, gpt.kv_heads), gpt.mlp_width);
}

std::vector<BrokenRule> broken_head_rules(const TransformerOptions& gpt, const KeyNotes& notes) {
  std::vector<BrokenRule> broken;
  const bool heads_are_default = notes.is_default("model.heads"),
             width_is_default = notes.is_default("model.width");
  const char* key = heads_are_default && !width_is_default ? "model.width" : "model.heads";
  if (gpt.width % gpt.heads != 0)
    broken.push_back(
        {key, fmt::format("model.width = {}{} is not a multiple of model.heads = {}{} (all heads "
                          "have the same width); use model.width = {}, or model.heads = {}",
                          gpt.width, notes.inner("model.width"), gpt.heads, notes("model.heads"),
                          nearest_multiples(gpt.width, gpt.heads),
                          nearest_divisors(gpt.heads, gpt.width))});
  else if (gpt.positions == PositionKind::rope && gpt.head_width() % 2 != 0)
    broken.push_back(
        {key, fmt::format("positions = \"rope\" rotates pairs of numbers, but a head's "
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

std::optional<BrokenRule> broken_split_rule(const ModelOptions& options, std::int64_t tensor,
                                            const KeyNotes& notes) {
  if (tensor == 1) return std::nullopt;
  if (!family_of(options).splits_by_tensor)
    return BrokenRule{
        "parallel.tensor",
        fmt::format("{} splits the layers of model.{} only, not those of image models; use "
                    "tensor = 1 with more data ranks or stages",
                    tensor,
                    kinds_with([](const Family& family) { return family.splits_by_tensor; }))};
  const TransformerOptions& gpt = options.gpt;
  for (const auto& [key, extent] :
       {std::pair("model.heads", gpt.heads), std::pair("model.kv_heads", gpt.kv_heads),
        std::pair("model.mlp_width", gpt.mlp_width)}) {
    if (extent % tensor == 0) continue;
    return BrokenRule{"parallel.tensor",
                      fmt::format("{} does not divide {} = {}{} (each rank of a "
                                  "tensor group takes an equal part); use {}",
                                  tensor, key, extent, notes(key),
                                  nearest_divisors(tensor, max_tensor_size(gpt)))};
  }
  return std::nullopt;
}

std::optional<BrokenRule> broken_row_rule(std::int64_t micro, std::int64_t context,
                                          std::int64_t tensor, const KeyNotes& notes) {
  if (micro * context % tensor == 0) return std::nullopt;
  return BrokenRule{
      "parallel.sequence",
      fmt::format("true: batch.micro = {}{} x model.context = {}{} rows are not divisible "
                  "by parallel.tensor = {}; use batch.micro = {}, or sequence = false",
                  micro, notes.inner("batch.micro"), context, notes.inner("model.context"), tensor,
                  nearest_multiples(micro, tensor / std::gcd(tensor, context)))};
}

}  // namespace trireme::model
