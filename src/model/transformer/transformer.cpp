// SPDX-License-Identifier: Apache-2.0
//
// Makes a transformer from its parts.
#include <memory>

#include "parts.hpp"

namespace trireme::model {

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
