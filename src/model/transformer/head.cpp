// SPDX-License-Identifier: Apache-2.0
//
// The head of a transformer: final norm, projection to the vocabulary, softmax loss, and the
// backward of all three, in one call per micro-batch.
//
// Logits of all rows would be the largest tensor of the model, so rows are processed in groups of
// tiles (choose_tile_sizes):
//
//   group 0                                                        group 1 ...
//   tile 0: logits, statistics, dlogits | tile 1: ... | tile n
//                                                     | table gradient, dx of the group
//
// On the CPU a tile's float32 logits stay in the last cache from the product to the gradient. With
// tensor parallelism each rank has a range of the vocabulary; softmax statistics are merged per
// tile. With debug.fused_softmax a tile's logits have the type of the activations, and the gradient
// overwrites them.
#include <algorithm>
#include <utility>

#include "model/parallel_layers.hpp"
#include "parts.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/softmax_loss.hpp"

namespace trireme::model {
namespace {

/// Rows per tile and per group. Matrix products
/// with the logits' gradient take a whole group: the gradient of the table, float32 and as large as
/// the table, is then read and written once per group and not once per tile.
struct LossTiling {
  std::int64_t tile, group;  ///< rows
};

/// Largest size of the float32 logits of a tile and of a group, in bytes. On the CPU a tile fits in
/// the last cache. On a GPU it is as large as a group: fewer launches and fewer readings of the
/// table are worth more than the cache. The gradient of a group, in bfloat16 half of this, is small
/// against the activations of any model that fills the device.
struct LossTilingBytes {
  std::int64_t tile, group;
};
constexpr LossTilingBytes host_bytes{std::int64_t{32} << 20, std::int64_t{256} << 20};
constexpr LossTilingBytes gpu_bytes{std::int64_t{1} << 30, std::int64_t{1} << 30};
constexpr std::int64_t min_tile_rows = 64;

/// Returns the sizes for a device; `tile_mb`: model.head_tile_mb, 0 for the default.
LossTilingBytes tiling_bytes(std::int64_t tile_mb, DeviceKind target) {
  LossTilingBytes bytes = target == DeviceKind::cuda ? gpu_bytes : host_bytes;
  if (tile_mb > 0) bytes.tile = tile_mb << 20;
  bytes.group = std::max(bytes.group, bytes.tile);
  return bytes;
}

/// Returns how many rows a part should have: a multiple of `unit`, at most `max_rows`. A size that
/// divides `rows` is preferred if one of at least `min_rows` exists: products prepare a weight for
/// one number of rows.
std::int64_t choose_part_rows(std::int64_t rows, std::int64_t max_rows, std::int64_t unit,
                              std::int64_t min_rows) {
  const std::int64_t largest = std::min(rows, max_rows / unit * unit);
  for (std::int64_t part = largest; part >= std::min(largest, min_rows); part -= unit) {
    if (rows % part == 0) return part;
  }
  return largest;
}

/// Chooses the rows of a tile and of a group for logits of `classes` columns.
LossTiling choose_tile_sizes(std::int64_t rows, std::int64_t classes,
                             const LossTilingBytes& bytes) {
  const std::int64_t row = classes * size_of(DType::float32);
  const std::int64_t tile =
      choose_part_rows(rows, std::max(min_tile_rows, bytes.tile / row), 1, min_tile_rows);
  return {tile, choose_part_rows(rows, std::max(tile, bytes.group / row), tile,
                                 std::max(tile, bytes.group / row / 2))};
}

/// The head of a transformer; see the top of this file.
class TransformerHead final : public Head {
 public:
  TransformerHead(const TransformerOptions& options, std::shared_ptr<EmbeddingTie> tie)
      : options_(options),
        names_(options),
        tie_(std::move(tie)),
        norm_(names_.final_norm,
              {.kind = options.norm, .width = options.width, .epsilon = options.norm_epsilon}) {}
  std::string name() const override { return "head"; }

  void declare(parallel::ParameterList& list) override {
    norm_.declare(list);
    parallel::ParameterSpec spec = embedding_spec(options_);
    if (options_.tie_embeddings) {
      tie_->shares_table = list.find(spec.name) >= 0;
    } else {
      spec.name = names_.head + ".weight";
    }
    table_ = list.declare(std::move(spec));
    first_class_ = list.partition(table_).row_begin();
    local_classes_ = list.partition(table_).rows();
  }

  Tensor loss(MicroBatchPass& pass, const Tensor& x, const Tensor& labels,
              const LossSettings& scale, const Tensor& sums) override {
    TRIREME_EXPECT(!scale.label_weights.defined() && !scale.logits.defined());
    ops::Context& context = pass.context();
    Arena& workspace = context.workspace();
    const bool training = pass.training(), split = pass.tensor().size() > 1;
    const std::int64_t rows = labels.elements();
    const Tensor targets = labels.reshaped({rows}),
                 dx = training ? pass.gradient(x.dtype, x.shape) : Tensor{};

    // 1. Norm, then all rows on every rank.
    const ArenaScope scope(workspace);
    const RowNormLayer::Normalized normed = normalize(pass, x);
    const Tensor input = gather_rows(pass, normed.y);
    // In a tensor group of one the gradient overwrites its rows of the input, which nothing reads
    // again.
    const Tensor dinput =
        training && split ? workspace.allocate(DType::float32, input.shape) : input;
    // 2. Loss and gradients, group by group.
    const RowResults row{scale.statistics.defined() ? scale.statistics
                                                    : workspace.allocate(DType::float32, {rows, 4}),
                         workspace.allocate(DType::int32, {rows})};
    ops::fill(context, row.label_ranks, 0);
    const LossTiling tiles = choose_tile_sizes(
        rows, local_classes_, tiling_bytes(options_.head_tile_mb, context.target()));
    for (std::int64_t begin = 0; begin < rows; begin += tiles.group) {
      const std::int64_t end = std::min(begin + tiles.group, rows);
      const RowRange group{input.rows(begin, end), targets.rows(begin, end),
                           row.statistics.rows(begin, end), row.label_ranks.rows(begin, end)};
      loss_of_group(pass, group, tiles.tile, scale, dinput.rows(begin, end),
                    begin == 0 ? pass.write() : ops::Write::add);
    }
    // 3. Sums over all rows, and the backward of the norm.
    if (split) sum_label_ranks(pass, row.label_ranks);
    ops::softmax_sums(context, row.statistics, targets, row.label_ranks, options_.vocabulary,
                      scale.label_smoothing, sums, ops::Write::assign);
    if (training)
      norm_.compute_gradients(pass, x, normed,
                              convert_to(pass, sum_over_group(pass, dinput), x.dtype), {}, dx);
    return dx;
  }

  Tensor logits(MicroBatchPass& pass, const Tensor& x, std::int64_t row) override {
    ops::Context& context = pass.context();
    const parallel::TensorGroup& group = pass.tensor();
    const Tensor all = pass.activation(DType::float32, {1, options_.vocabulary});
    const ArenaScope scope(context.workspace());
    const ops::Linear linear = problem(1, x.dtype);
    const Tensor input = normalized_row(pass, x, row);
    const Tensor mine{all.data == nullptr ? nullptr : all.as<float>() + first_class_,
                      all.dtype,
                      all.device,
                      {1, local_classes_}};
    if (group.size() > 1) ops::fill(context, all, 0);
    ops::linear_forward(context, linear, input, weight(pass), {}, mine);
    if (group.size() > 1) group.all_reduce(context, all);  // own classes, zeros elsewhere
    return all;
  }

 private:
  /// Results for all rows: softmax statistics, and the number of classes that score above the
  /// label.
  struct RowResults {
    Tensor statistics, label_ranks;
  };
  /// The rows of a tile or of a group.
  struct RowRange {
    Tensor input, labels, statistics, label_ranks;
    RowRange rows(std::int64_t begin, std::int64_t end) const {
      return {input.rows(begin, end), labels.rows(begin, end), statistics.rows(begin, end),
              label_ranks.rows(begin, end)};
    }
  };

  ops::Linear problem(std::int64_t rows, DType dtype) const {
    return {.rows = rows,
            .in = options_.width,
            .out = local_classes_,
            .dtype = dtype,
            .float32_result = true};
  }
  ops::Weight weight(MicroBatchPass& pass) { return pass.weight(table_, prepared_); }

  RowNormLayer::Normalized normalize(MicroBatchPass& pass, const Tensor& x) {
    Arena& workspace = pass.context().workspace();
    const Tensor y = workspace.allocate(x.dtype, x.shape),
                 rstd = workspace.allocate(DType::float32, {x.shape[0]});
    const Tensor mean = options_.norm == NormKind::rms
                            ? Tensor{}
                            : workspace.allocate(DType::float32, {x.shape[0]});
    return norm_.normalize(pass, x, {y, mean, rstd});
  }

  /// Computes loss and gradients of one group: its tiles, then the products with the gradient.
  void loss_of_group(MicroBatchPass& pass, const RowRange& group, std::int64_t tile_rows,
                     const LossSettings& scale, const Tensor& dinput, ops::Write write) {
    ops::Context& context = pass.context();
    const ArenaScope scope(context.workspace());
    const std::int64_t rows = group.input.shape[0];
    ops::Linear linear = problem(rows, group.input.dtype);
    const Tensor dlogits = pass.training()
                               ? context.workspace().allocate(linear.dtype, {rows, local_classes_})
                               : Tensor{};
    for (std::int64_t begin = 0; begin < rows; begin += tile_rows) {
      const std::int64_t end = std::min(begin + tile_rows, rows);
      loss_of_tile(pass, group.rows(begin, end), scale,
                   dlogits.defined() ? dlogits.rows(begin, end) : Tensor{});
    }
    if (!pass.training()) return;
    linear.float32_result = false;
    ops::linear_backward_weight(context, linear, group.input, dlogits, pass.gradient_of(table_), {},
                                write);
    linear.float32_result = pass.tensor().size() > 1;
    ops::linear_backward_data(context, linear, dlogits, weight(pass), dinput);
  }

  /// Computes the logits of one tile, their statistics and, if dlogits is defined (training), their
  /// gradient.
  void loss_of_tile(MicroBatchPass& pass, const RowRange& tile, const LossSettings& scale,
                    const Tensor& dlogits) {
    ops::Context& context = pass.context();
    const ArenaScope scope(context.workspace());
    const std::int64_t rows = tile.input.shape[0];
    const bool fused = context.fused_softmax() && pass.tensor().size() == 1;
    ops::Linear linear = problem(rows, tile.input.dtype);
    linear.float32_result = !fused;
    const DType type = fused ? linear.dtype : DType::float32;
    const bool in_place = dlogits.defined() && dlogits.dtype == type;
    const Tensor logits =
        in_place ? dlogits : context.workspace().allocate(type, {rows, local_classes_});
    ops::linear_forward(context, linear, tile.input, weight(pass), {}, logits);
    const ops::SoftmaxGradient gradient{.first = first_class_,
                                        .total_classes = options_.vocabulary,
                                        .label_smoothing = scale.label_smoothing,
                                        .gradient_scale = scale.gradient_scale};
    if (fused)
      return ops::fused_softmax(context, gradient, logits, tile.labels, tile.statistics, dlogits,
                                tile.label_ranks);
    statistics(pass, tile, logits);
    ops::softmax_gradient(context, gradient, logits, tile.labels, tile.statistics, dlogits,
                          tile.label_ranks);
  }

  /// Computes the softmax statistics of a tile over the classes of all ranks.
  void statistics(MicroBatchPass& pass, const RowRange& tile, const Tensor& logits) const {
    ops::Context& context = pass.context();
    const std::int64_t size = pass.tensor().size(), rows = logits.shape[0];
    if (size == 1)
      return ops::softmax_statistics(context, logits, tile.labels, first_class_, tile.statistics);
    const ArenaScope scope(context.workspace());
    const Tensor mine = context.workspace().allocate(DType::float32, {rows, 4}),
                 all = context.workspace().allocate(DType::float32, {size, rows, 4});
    ops::softmax_statistics(context, logits, tile.labels, first_class_, mine);
    pass.tensor().gather(context, mine, all);
    ops::merge_statistics(context, all, tile.statistics);
  }

  /// Sums the counts of better classes over the tensor group, in place.
  static void sum_label_ranks(MicroBatchPass& pass, const Tensor& ranks) {
    ops::Context& context = pass.context();
    const std::int64_t size = pass.tensor().size();
    const ArenaScope scope(context.workspace());
    const Tensor all = context.workspace().allocate(DType::int32, {size, ranks.shape[0]});
    pass.tensor().gather(context, ranks, all);
    ops::fill(context, ranks, 0);
    for (std::int64_t part = 0; part < size; ++part)
      ops::add(context, all.rows(part, part + 1), ranks);
  }

  /// Returns row `row` of all rows after the norm, [1, C] in the workspace, on every rank. The rank
  /// that holds the row sends it as a sum with zeros, which is exact.
  Tensor normalized_row(MicroBatchPass& pass, const Tensor& x, std::int64_t row) {
    const parallel::TensorGroup& group = pass.tensor();
    if (!group.rows_are_split()) return normalize(pass, x.rows(row, row + 1)).y;
    const parallel::TensorGroup::RowLocation place =
        group.locate_row(row, group_row_count(group, x), x.shape[1]);
    const std::int64_t here = place.rank == group.rank() ? place.row : 0;
    const Tensor mine = convert_to(pass, normalize(pass, x.rows(here, here + 1)).y, DType::float32);
    if (place.rank != group.rank()) ops::fill(pass.context(), mine, 0);
    group.all_reduce(pass.context(), mine);
    return convert_to(pass, mine, x.dtype);
  }

  TransformerOptions options_;
  TransformerNames names_;
  std::shared_ptr<EmbeddingTie> tie_;
  RowNormLayer norm_;
  parallel::ParameterId table_;
  std::int64_t first_class_ = 0, local_classes_ = 0;  ///< this rank's range of the vocabulary
  ops::PreparedWeight prepared_;
};

}  // namespace

std::unique_ptr<Head> make_transformer_head(const TransformerOptions& options,
                                            std::shared_ptr<EmbeddingTie> tie) {
  return std::make_unique<TransformerHead>(options, std::move(tie));
}

}  // namespace trireme::model
