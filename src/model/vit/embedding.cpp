// SPDX-License-Identifier: Apache-2.0
//
// The first block of a vision transformer: patches of the image, a linear layer, class token,
// positions and dropout.
//
//   forward   patches (class row: zeros) x weight -> + table -> dropout
//             table = positions + class token (row 0), + bias (other rows)
//   backward  dropout -> gather all rows -> sums by position = gradient of the table
//             -> gradients of positions, class token and bias; product -> gradient of the weight
//
// In a tensor group each rank multiplies a share of the rows. The sum over the group is exact,
// because the others contribute 0; so all ranks have the same bits. The gradient of the weight is
// summed over the group with the other gradients.
#include <cmath>
#include <utility>

#include "model/parallel_layers.hpp"
#include "parts.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/embedding.hpp"

namespace trireme::model {
namespace {

using parallel::Initializer;
using parallel::ParameterSpec;

/// Maps images [B, H, W, C] to rows [held, width]: `leading` rows and one for each patch a sample.
class PatchEmbedding final : public Block {
 public:
  PatchEmbedding(const VitOptions& options, const ops::PatchRows& patches, int row_split)
      : options_(options), patches_(patches), row_split_(row_split), dropout_("patch_embed") {}
  std::string name() const override { return "patch_embed"; }

  void declare(parallel::ParameterList& list) override {
    const std::int64_t width = options_.width;
    const auto plain = [&](const char* parameter, const Shape& shape, const Initializer& start) {
      ParameterSpec spec{.name = parameter, .shape = shape, .initializer = start};
      spec.decay = spec.trust = false;
      return spec;
    };
    if (has_token())
      token_ = list.declare(plain("cls_token", {1, 1, width}, {Initializer::Kind::normal, 1e-6}));
    ParameterSpec positions =
        plain("pos_embed", {1, sample_rows(), width}, {Initializer::Kind::normal, vit_deviation});
    positions.grid = {options_.leading_rows(), patches_.height / patches_.patch,
                      patches_.width / patches_.patch};
    positions_ = list.declare(std::move(positions));
    const Initializer uniform{Initializer::Kind::uniform,
                              1.0 / std::sqrt(static_cast<double>(patches_.row_elements()))};
    weight_ = list.declare({.name = "patch_embed.proj.weight",
                            .shape = {width, patches_.channels, patches_.patch, patches_.patch},
                            .initializer = uniform,
                            .inner = parallel::InnerOrder::channels_last,
                            .partial_gradient = parallel::PartialGradient::in_any_group});
    bias_ = list.declare(plain("patch_embed.proj.bias", {width}, uniform));
  }

  Shape output_shape(const Shape& input) const override {
    TRIREME_EXPECT(input == (Shape{input[0], patches_.height, patches_.width, patches_.channels}));
    return {input[0] * sample_rows() / row_split_, options_.width};
  }

  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    ops::Context& context = pass.context();
    Arena& workspace = context.workspace();
    const parallel::TensorGroup& group = pass.tensor();
    const std::int64_t rows = x.shape[0] * sample_rows();
    const Tensor y = pass.activation(x.dtype, {group.rows_held(rows), options_.width});
    const ArenaScope scope(workspace);
    const Range share = share_of(group, rows);
    const Tensor products =
        group.size() == 1 ? y : workspace.allocate(x.dtype, {rows, options_.width});
    if (group.size() > 1) ops::fill(context, products, 0);
    if (share.begin < share.end)
      ops::linear_forward(context, problem(share, x.dtype), patches_of(pass, x, share),
                          weight(pass), {}, products.rows(share.begin, share.end));
    if (group.size() > 1)
      ops::cast(context, sum_over_group(pass, convert_to(pass, products, DType::float32)), y);
    const Tensor table = row_table(pass);
    for_each_held_chunk(group, y, [&](const parallel::RowChunk& piece) {
      ops::add_positions(context, table, piece.first_held,
                         y.rows(piece.held_begin, piece.held_end));
    });
    dropout_.apply_in_place(pass, options_.dropout, sample_rows(), y);
    pass.push_saved(x);
    return y;
  }

  Tensor backward(MicroBatchPass& pass, const Tensor& dy) override {
    ops::Context& context = pass.context();
    const Tensor x = pass.pop_saved();
    const ArenaScope scope(context.workspace());
    dropout_.apply_in_place(pass, options_.dropout, sample_rows(), dy);
    const Tensor whole = gather_rows(pass, dy);
    table_backward(pass, whole);
    if (const Tensor dweight = pass.gradient_of(weight_); dweight.defined()) {
      const Range share = share_of(pass.tensor(), whole.shape[0]);
      if (share.begin < share.end)
        ops::linear_backward_weight(context, problem(share, x.dtype), patches_of(pass, x, share),
                                    whole.rows(share.begin, share.end), as_matrix(dweight), {},
                                    pass.write());
      else if (pass.write() == ops::Write::assign)
        ops::fill(context, dweight, 0);
    }
    return {};
  }

 private:
  struct Range {
    std::int64_t begin, end;
  };
  bool has_token() const { return options_.leading_rows() > 0; }
  std::int64_t sample_rows() const { return patches_.rows_of_sample(); }
  /// Returns the rows that this rank multiplies.
  static Range share_of(const parallel::TensorGroup& group, std::int64_t rows) {
    return {rows * group.rank() / group.size(), rows * (group.rank() + 1) / group.size()};
  }
  ops::Linear problem(const Range& share, DType dtype) const {
    return {.rows = share.end - share.begin,
            .in = patches_.row_elements(),
            .out = options_.width,
            .dtype = dtype};
  }
  Tensor patches_of(MicroBatchPass& pass, const Tensor& x, const Range& share) const {
    const Tensor rows = pass.context().workspace().allocate(
        x.dtype, {share.end - share.begin, patches_.row_elements()});
    ops::gather_patches(pass.context(), patches_, x, share.begin, rows);
    return rows;
  }
  Tensor as_matrix(const Tensor& tensor) const {
    return tensor.reshaped({options_.width, patches_.row_elements()});
  }
  ops::Weight weight(MicroBatchPass& pass) {
    ops::Weight matrix = pass.single_use_weight(weight_, prepared_);
    matrix.value = as_matrix(matrix.value);
    return matrix;
  }

  /// Returns the sum [rows of a sample, width] of all vectors that are added to the rows.
  Tensor row_table(MicroBatchPass& pass) const {
    ops::Context& context = pass.context();
    parallel::ParameterStore& store = pass.store();
    const Tensor positions = store.weight(positions_).reshaped({sample_rows(), options_.width});
    const Tensor table = context.workspace().allocate(positions.dtype, positions.shape);
    ops::copy(context, positions, table);
    if (has_token())
      ops::add(context, store.weight(token_).reshaped({1, options_.width}), table.rows(0, 1));
    ops::add_positions(context, store.weight(bias_).reshaped({1, options_.width}), 0,
                       table.rows(options_.leading_rows(), sample_rows()));
    return table;
  }
  /// Writes the gradients of those vectors, of which every rank has all rows.
  void table_backward(MicroBatchPass& pass, const Tensor& dy) {
    ops::Context& context = pass.context();
    const Tensor dtable =
        context.workspace().allocate(DType::float32, {sample_rows(), options_.width});
    ops::positions_backward(context, dy, 0, dtable, ops::Write::assign);
    const auto write = [&](parallel::ParameterId id, const Tensor& value) {
      if (const Tensor gradient = pass.gradient_of(id); gradient.defined())
        ops::scaled_copy(context, value, 1, gradient.reshaped(value.shape), pass.write());
    };
    write(positions_, dtable);
    if (has_token()) write(token_, dtable.rows(0, 1));
    if (const Tensor dbias = pass.gradient_of(bias_); dbias.defined())
      ops::column_sums(context, dtable.rows(options_.leading_rows(), sample_rows()), dbias,
                       pass.write());
  }

  VitOptions options_;
  ops::PatchRows patches_;
  int row_split_;
  DropoutKey dropout_;
  parallel::ParameterId token_, positions_, weight_, bias_;
  ops::PreparedWeight prepared_;
};

}  // namespace

std::unique_ptr<Block> make_patch_embedding(const VitOptions& options,
                                            const ops::PatchRows& patches, int row_split) {
  return std::make_unique<PatchEmbedding>(options, patches, row_split);
}

}  // namespace trireme::model
