#include <utility>

#include "gpt_layers.hpp"
#include "gpt_parts.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/embedding.hpp"

namespace trireme::model {

parallel::ParameterSpec embedding_spec(const GptOptions& options) {
  parallel::ParameterSpec spec =
      matrix_spec(GptNames(options).embedding + ".weight", {options.vocabulary, options.width});
  spec.split.along = parallel::Split::Along::rows;
  spec.tied = options.tie_embeddings;
  return spec;
}

namespace {

/// Tokens [B, T] to rows [held, C]: the vocabulary is split over the tensor group, a rank gives 0
/// for the others' tokens, and the sum is whole.
class EmbeddingBlock final : public Block {
 public:
  EmbeddingBlock(const GptOptions& options, const Placement& placement, std::shared_ptr<Tie> tie)
      : options_(options),
        names_(options),
        placement_(placement),
        tie_(std::move(tie)),
        dropout_("embedding") {}
  std::string name() const override { return "embedding"; }

  void declare(parallel::ParameterList& list) override {
    table_ = list.declare(embedding_spec(options_));
    first_ = list.partition(table_).row_begin();
    tie_->one_buffer = false;  // until the head says otherwise
    if (learned())
      positions_ = list.declare(
          matrix_spec(names_.positions + ".weight", {options_.context, options_.width}));
  }

  Shape output_shape(const Shape& input) const override {
    TRIREME_EXPECT(input.rank() == 2 && input[1] == options_.context);
    return {placement_.sequence ? input.elements() / placement_.tensor_size : input.elements(),
            options_.width};
  }

  Tensor forward(Pass& pass, const Tensor& x) override {
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
      ops::embedding_forward(context, tokens, table, first_, mine);
      ops::cast(context, summed(pass, converted(pass, mine, DType::float32)),
                y);  // exact: one rank of the group has the token
    }
    if (learned()) {
      each_piece(group, y, [&](const parallel::RowChunk& piece) {
        ops::add_positions(context, pass.store().weight(positions_), piece.first_held,
                           y.rows(piece.held_begin, piece.held_end));
      });
    }
    dropout_.apply(pass, options_.dropout, options_.context, y, y);
    pass.save(tokens);
    return y;
  }

  Tensor backward(Pass& pass, const Tensor& dy) override {
    ops::Context& context = pass.context();
    const Tensor tokens = pass.restore();
    const ArenaScope scope(context.workspace());
    dropout_.apply(pass, options_.dropout, options_.context, dy, dy);
    const Tensor whole = gathered(pass, dy);
    // Every rank of the group sees all rows: the positions' gradient is whole on each.
    if (learned())
      ops::positions_backward(context, whole, 0, pass.store().gradient(positions_), pass.write());
    ops::embedding_backward(context, tokens, whole, first_, pass.store().gradient(table_),
                            tie_->one_buffer ? ops::Write::add : pass.write());
    return {};
  }

 private:
  bool learned() const { return options_.positions == GptPositions::learned; }
  GptOptions options_;
  GptNames names_;
  Placement placement_;
  std::shared_ptr<Tie> tie_;
  DropoutKey dropout_;
  parallel::ParameterId table_, positions_;
  std::int64_t first_ = 0;  ///< token of the table's row 0 on this rank
};

}  // namespace

std::unique_ptr<Block> make_embedding(const GptOptions& options, const Placement& placement,
                                      std::shared_ptr<Tie> tie) {
  return std::make_unique<EmbeddingBlock>(options, placement, std::move(tie));
}

}  // namespace trireme::model
