#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/model/model.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::model {

/// What the tensors of a transformer are called (without .weight, .bias) and how its matrices lie.
/// Learned positions: GPT-2's names, matrices [in, out], products of one input joined in one
/// tensor; rope: Llama's names, matrices [out, in], a tensor a product. Forms that neither library
/// has: a GPT-2 with swiglu has gate | up side by side in c_fc, as c_attn has q | k | v; a Llama
/// with gelu has up_proj without gate_proj; a layer norm has .bias in either.
struct TransformerNames {
  explicit TransformerNames(const TransformerOptions& options);
  struct Layer {
    std::string block, attention_norm, projection, mlp_norm, down;
    std::vector<std::string> qkv, up;
  };
  Layer layer(std::int64_t index) const;

  bool is_gpt2, is_gated;
  ops::MatrixOrder order;
  std::string embedding, positions, final_norm, head;
};

/// What the embedding and the head know of each other on a rank.
struct EmbeddingTie {
  bool shares_table =
      false;  ///< both read one table: the head writes its gradient first, the embedding adds
};

std::unique_ptr<Block> make_embedding(const TransformerOptions& options,
                                      const TensorPlacement& placement,
                                      std::shared_ptr<EmbeddingTie> tie);
std::unique_ptr<Block> make_transformer_block(const TransformerOptions& options,
                                              std::int64_t layer);
std::unique_ptr<Head> make_transformer_head(const TransformerOptions& options,
                                            std::shared_ptr<EmbeddingTie> tie);

/// The embedding's table, whose rows are split over the tensor group: [vocabulary, width].
parallel::ParameterSpec embedding_spec(const TransformerOptions& options);

}  // namespace trireme::model
