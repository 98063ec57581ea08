// SPDX-License-Identifier: Apache-2.0
//
// The first block of a transformer: token embedding, learned positions and dropout.
//
// With tensor parallelism each rank holds a range of the vocabulary:
//   forward   look up own tokens, 0 for others -> sum over the group -> + positions -> dropout
//   backward  dropout -> gather all rows -> gradients of positions and of the own table rows
// If the output head uses the same table, the head writes the gradient and this block adds to it.
#include <utility>

#include "model/parallel_layers.hpp"
#include "parts.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/embedding.hpp"

namespace trireme::model {

parallel::ParameterSpec embedding_spec(const TransformerOptions& options) {
  parallel::ParameterSpec spec = matrix_spec(TransformerNames(options).embedding + ".weight",
                                             {options.vocabulary, options.width});
  spec.split.along = parallel::Split::Along::rows;
  spec.tied = options.tie_embeddings;
  return spec;
}

namespace {

/// Maps tokens [B, T] to rows [held, C]; T is the context, or the length of a sequence
/// (MicroBatchPass::sequence). A rank produces 0 for tokens outside its part of the
/// vocabulary, so the sum over the tensor group is complete.
class EmbeddingBlock final : public Block {
 public:
  EmbeddingBlock(const TransformerOptions& options, const TensorPlacement& placement,
                 std::shared_ptr<EmbeddingTie> tie)
      : options_(options),
        names_(options),
        placement_(placement),
        tie_(std::move(tie)),
        dropout_("embedding") {}
  std::string name() const override { return "embedding"; }

  void declare(parallel::ParameterList& list) override {
    table_ = list.declare(embedding_spec(options_));
    first_token_ = list.partition(table_).row_begin();
    tie_->shares_table = false;  // the head sets it when it is declared
    if (has_learned_positions())
      positions_ = list.declare(
          matrix_spec(names_.positions + ".weight", {options_.context, options_.width}));
  }

  Shape output_shape(const Shape& input) const override {
    TRIREME_EXPECT(input.rank() == 2 && input[1] == options_.context);
    return {
        placement_.sequence_parallel ? input.elements() / placement_.tensor_size : input.elements(),
        options_.width};
  }

  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    ops::Context& context = pass.context();
    const parallel::TensorGroup& group = pass.tensor();
    const std::int64_t rows = x.elements(), held = group.rows_held(rows);
    const Tensor tokens = x.reshaped({rows}), table = pass.store().weight(table_);
    const Tensor y = pass.activation(table.dtype, {held, options_.width});
    const ArenaScope scope(context.workspace());
    if (group.size() == 1) {
      ops::embedding_forward(context, tokens, table, 0, y);
    } else {
      const Tensor mine = context.workspace().allocate(table.dtype, {rows, options_.width});
      ops::embedding_forward(context, tokens, table, first_token_, mine);
      // The sum is exact: only one rank of the group has the token, the others contribute 0.
      ops::cast(context, sum_over_group(pass, convert_to(pass, mine, DType::float32)), y);
    }
    if (has_learned_positions()) {
      for_each_held_chunk(group, y, [&](const parallel::RowChunk& piece) {
        ops::add_positions(context, pass.store().weight(positions_),
                           pass.first_position() + piece.first_held,
                           y.rows(piece.held_begin, piece.held_end));
      });
    }
    dropout_.apply_in_place(pass, options_.dropout, options_.context, y);
    pass.push_saved(tokens);
    return y;
  }

  Tensor backward(MicroBatchPass& pass, const Tensor& dy) override {
    ops::Context& context = pass.context();
    const Tensor tokens = pass.pop_saved();
    const ArenaScope scope(context.workspace());
    dropout_.apply_in_place(pass, options_.dropout, options_.context, dy);
    const Tensor whole = gather_rows(pass, dy);
    // Every rank of the group has all rows here, so each computes the full gradient of the
    // positions.
    const Tensor dtable = pass.gradient_of(table_),
                 dpositions = has_learned_positions() ? pass.gradient_of(positions_) : Tensor{};
    if (dpositions.defined()) ops::positions_backward(context, whole, 0, dpositions, pass.write());
    if (dtable.defined())
      ops::embedding_backward(context, tokens, whole, first_token_, dtable,
                              tie_->shares_table ? ops::Write::add : pass.write());
    return {};
  }

 private:
  bool has_learned_positions() const { return options_.positions == PositionKind::learned; }
  TransformerOptions options_;
  TransformerNames names_;
  TensorPlacement placement_;
  std::shared_ptr<EmbeddingTie> tie_;
  DropoutKey dropout_;
  parallel::ParameterId table_, positions_;
  std::int64_t first_token_ = 0;  ///< first token of this rank's part of the table
};

}  // namespace

std::unique_ptr<Block> make_embedding(const TransformerOptions& options,
                                      const TensorPlacement& placement,
                                      std::shared_ptr<EmbeddingTie> tie) {
  return std::make_unique<EmbeddingBlock>(options, placement, std::move(tie));
}

}  // namespace trireme::model
