// Makes a transformer from its parts, and validates its extents.
#include <algorithm>
#include <string>

#include "transformer_parts.hpp"
#include "trireme/base/check.hpp"

namespace trireme::model {
namespace {

/// Returns the greatest divisor of `whole` that is at most `max_divisor`.
std::int64_t largest_divisor(std::int64_t whole, std::int64_t max_divisor) {
  std::int64_t d = std::clamp<std::int64_t>(max_divisor, 1, whole);
  while (whole % d != 0) --d;
  return d;
}

/// Returns the multiples of `part` next to `value` on both sides: "384 or 512".
std::string multiples(std::int64_t value, std::int64_t part) {
  const std::int64_t below = value / part * part;
  return below > 0 ? fmt::format("{} or {}", below, below + part) : fmt::format("{}", part);
}

}  // namespace

void validate_transformer(const TransformerOptions& o, int tensor_size) {
  TRIREME_EXPECT(o.layers > 0 && o.heads > 0 && o.kv_heads > 0 && o.width > 0 && o.mlp_width > 0 &&
                 o.context > 0 && o.vocabulary > 0 && tensor_size > 0);
  validate(
      o.width % o.heads == 0,
      "model.width = {} is not divisible by model.heads = {} (all heads have the same width); use "
      "width = {}",
      o.width, o.heads, multiples(o.width, o.heads));
  validate(o.heads % o.kv_heads == 0,
           "model.heads = {} is not divisible by model.kv_heads = {} (each serves the same number "
           "of heads); "
           "use kv_heads = {}",
           o.heads, o.kv_heads, largest_divisor(o.heads, o.kv_heads));
  validate(
      o.positions != PositionKind::rope || o.head_width() % 2 == 0,
      "model.width / model.heads = {} / {} = {} is odd, but positions = \"rope\" rotates pairs "
      "of a head's elements; use width = {}",
      o.width, o.heads, o.head_width(), multiples(o.width, 2 * o.heads));
  const auto split = [&](std::int64_t extent, const char* key, const char* what) {
    validate(
        extent % tensor_size == 0,
        "model.{} = {} is not divisible by parallel.tensor = {} ({}); use tensor = {}, or {} = {}",
        key, extent, tensor_size, what, largest_divisor(extent, tensor_size), key,
        multiples(extent, tensor_size));
  };
  split(o.heads, "heads", "attention is split by heads");
  split(o.kv_heads, "kv_heads", "attention is split by heads");
  split(o.mlp_width, "mlp_width", "each rank has the same number of columns of the mlp");
  validate(o.vocabulary >= tensor_size,
           "model.vocabulary = {} is less than parallel.tensor = {}, over which it is split; use "
           "tensor = {}",
           o.vocabulary, tensor_size, o.vocabulary);
}

ModelParts make_transformer(const TransformerOptions& options, const TensorPlacement& placement) {
  ModelParts chain;
  const auto tie = std::make_shared<EmbeddingTie>();
  chain.blocks.push_back(make_embedding(options, placement, tie));
  for (std::int64_t layer = 0; layer < options.layers; ++layer)
    chain.blocks.push_back(make_transformer_block(options, layer));
  chain.head = make_transformer_head(options, tie);
  return chain;
}

}  // namespace trireme::model
