// Sums of squares by tensor, for the gradient norm, clipping and trust ratios. Called by Optimizer.
//
// 1. The constructor lists which rank owns each row, and the rows of each tensor.
// 2. measure() enqueues one sum for each row that this rank owns, window by window.
// 3. The row sums are gathered over the data group and added by tensor in the order of the layout.
// 4. The sums by tensor are gathered over the model group.
// 5. parts() returns the table for the decision kernel.

#include "trireme/optim/norms.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"
#include "trireme/parallel/bounds.hpp"

namespace trireme::optim {
namespace {

std::byte* bytes_at(double* values) { return reinterpret_cast<std::byte*>(values); }

}  // namespace

SquareSums::SquareSums(const parallel::ParameterStore& store, const NormScope& scope,
                       const parallel::StateMemory& memory)
    : store_(store),
      model_(scope.model),
      engine_(scope.engine),
      sharded_(store.sharding().kind != parallel::ShardKind::none) {
  const auto& entries = store.list().entries();
  TRIREME_EXPECT(scope.tensor_count == 0 || scope.global_index.size() == entries.size());
  TRIREME_EXPECT(scope.counted.empty() || scope.counted.size() == entries.size());
  TRIREME_EXPECT(model_.size() == 1 || engine_ != nullptr);
  const bool is_whole_model = scope.tensor_count == 0;
  tensors_ = is_whole_model ? entries.size() : static_cast<std::size_t>(scope.tensor_count);
  for (std::size_t t = 0; t < entries.size(); ++t) {
    const std::size_t global = is_whole_model ? t : static_cast<std::size_t>(scope.global_index[t]);
    TRIREME_EXPECT(global < tensors_);
    index_.push_back(entries[t].spec.role == parallel::Role::statistic ? tensors_ : global);
  }
  build_row_lists(scope.counted.empty() ? std::vector<char>(entries.size(), 1) : scope.counted);
  const auto model_ranks = static_cast<std::size_t>(model_.size());
  squares_.resize(model_ranks * (tensors_ + 1));
  part_bounds_ = parallel::equal_bounds(model_ranks, (tensors_ + 1) * sizeof(double));
  rows_table_ = {store.owned().rows(), memory};
  row_sums_table_ = {row_sums_, memory};
  indices_table_ = {list_indices_, memory};
  begins_table_ = {list_begins_, memory};
  squares_table_ = {squares_, memory};
}

/// Builds the index lists from the layout. Each row has an owner and a number among the rows of
/// that owner. Each sum has the list of the indices of its rows in row_sums_, in the order of the
/// layout.
void SquareSums::build_row_lists(const std::vector<char>& counted) {
  // 1. Owner and number of each row.
  const parallel::FlatLayout& layout = store_.layout();
  const auto ranks = static_cast<std::size_t>(sharded_ ? store_.sharding().size() : 1);
  std::vector<std::size_t> counts(ranks), owner, number;
  for (const ops::FlatRow& row : layout.rows()) {
    if (store_.list()[{row.tensor}].frozen) break;  // these are last
    const auto bucket = static_cast<std::size_t>(layout.tensor({row.tensor}).bucket);
    const std::vector<std::int64_t>& bounds = store_.owned().buckets()[bucket].bounds;
    const auto after =
        std::upper_bound(bounds.begin(), bounds.end(), row.offset - layout.buckets()[bucket].begin);
    owner.push_back(static_cast<std::size_t>(after - bounds.begin()) - 1);
    number.push_back(counts[owner.back()]++);
  }
  // 2. Each data rank has space for the maximum number of rows, so that the gather moves equal
  //    pieces.
  const std::size_t max_rows = *std::max_element(counts.begin(), counts.end());
  row_sums_.resize(ranks * max_rows);
  row_bounds_ = parallel::equal_bounds(ranks, max_rows * sizeof(double));
  own_row_begin_ = sharded_ ? static_cast<std::size_t>(store_.sharding().rank()) * max_rows : 0;

  // 3. One list of rows for each tensor that this rank counts, and one for all running statistics.
  std::vector<std::vector<std::int64_t>> lists(tensors_ + 1);
  for (std::size_t r = 0; r < owner.size(); ++r) {
    const auto tensor = static_cast<std::size_t>(layout.rows()[r].tensor);
    if (counted[tensor] != 0)
      lists[index_[tensor]].push_back(static_cast<std::int64_t>(owner[r] * max_rows + number[r]));
  }
  list_begins_.push_back(0);
  for (const std::vector<std::int64_t>& list : lists) {
    list_indices_.insert(list_indices_.end(), list.begin(), list.end());
    list_begins_.push_back(static_cast<std::int64_t>(list_indices_.size()));
  }
}

void SquareSums::measure(ops::Context& context, const Tensor& flat, float limit) {
  for (const parallel::ParameterShard::Window& window : store_.owned().trained_windows())
    measure_window(context, window, flat.rows(window.begin, window.end), limit);
  reduce_by_tensor(context);
}

void SquareSums::measure(ops::Context& context, parallel::WindowedBuffer& buffer) {
  for (const parallel::ParameterShard::Window& window : store_.owned().trained_windows())
    measure_window(context, window, buffer.open(context, window));
  reduce_by_tensor(context);
}

void SquareSums::measure_window(ops::Context& context,
                                const parallel::ParameterShard::Window& window,
                                const Tensor& elements, float limit) {
  ops::row_square_sums(context, elements, rows_table_.view(context.stream()) + window.row_begin,
                       static_cast<std::int64_t>(window.row_end - window.row_begin),
                       row_sums_table_.view(context.stream()) + own_row_begin_ + window.row_begin,
                       limit);
}

void SquareSums::reduce_by_tensor(ops::Context& context) {
  const Stream& stream = context.stream();
  double* const row_sums = row_sums_table_.view(stream);
  if (sharded_ && row_bounds_.back() > 0) {
    comm::Engine& engine = *store_.sharding().engine;
    engine.wait(engine.all_gather(store_.sharding().data, bytes_at(row_sums), row_bounds_,
                                  "trireme/optim/gather_row_sums"));
  }
  double* const squares = squares_table_.view(stream);
  ops::sum_lists(context,
                 {.values = row_sums,
                  .indices = indices_table_.view(stream),
                  .offsets = begins_table_.view(stream),
                  .lists = static_cast<std::int64_t>(tensors_ + 1),
                  .terms = list_begins_.back(),
                  .sums = squares + static_cast<std::size_t>(model_.rank()) * (tensors_ + 1)});
  if (model_.size() > 1)
    engine_->wait(engine_->all_gather(model_, bytes_at(squares), part_bounds_,
                                      "trireme/optim/gather_square_sums"));
}

ops::PartialSquareSums SquareSums::parts(const Stream& stream) {
  return {.sums = squares_table_.view(stream),
          .parts = model_.size(),
          .tensors = static_cast<std::int64_t>(tensors_)};
}

}  // namespace trireme::optim
