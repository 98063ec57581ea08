// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "model/attention_block.hpp"
#include "options.hpp"
#include "trireme/model/model.hpp"
#include "trireme/ops/linear.hpp"
#include "trireme/tensor/transformers_config.hpp"

namespace trireme::model {

/// Names of a transformer's tensors (without .weight and .bias) and the order of its matrices; see
/// docs/reference/tensor_names.md.
///
/// - Learned positions: GPT-2's names, matrices [in, out], q | k | v joined in one tensor.
/// - rope: Llama's names, matrices [out, in], one tensor per product.
///
/// Forms that neither library has:
/// - GPT-2 with swiglu: gate | up are side by side in c_fc, as q | k | v are in c_attn.
/// - Llama with gelu: up_proj without gate_proj.
/// - Layer norm has a .bias in both.
struct TransformerNames {
  explicit TransformerNames(const TransformerOptions& options);
  AttentionBlockOptions::Names layer(std::int64_t index) const;

  bool is_gpt2, is_gated;
  ops::MatrixOrder order;
  std::string embedding, positions, final_norm, head;
};

/// Family::deck_lines and transformers_config.
std::string deck_lines(const TransformersConfig& config);
TransformersConfig transformers_config(const ModelOptions& options, std::int64_t vocabulary);

/// State that the embedding and the head of one rank share.
struct EmbeddingTie {
  /// Both are on this rank and read the same table. The head writes the table's gradient first, and
  /// the embedding adds to it. Set by the declare() functions.
  bool shares_table = false;
};

std::unique_ptr<Block> make_embedding(const TransformerOptions& options,
                                      const TensorPlacement& placement,
                                      std::shared_ptr<EmbeddingTie> tie);
std::unique_ptr<Head> make_transformer_head(const TransformerOptions& options,
                                            std::shared_ptr<EmbeddingTie> tie);

/// Returns the declaration of the embedding table [vocabulary, width]. Its rows are split over the
/// tensor group.
parallel::ParameterSpec embedding_spec(const TransformerOptions& options);

}  // namespace trireme::model
