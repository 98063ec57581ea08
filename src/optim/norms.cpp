// SPDX-License-Identifier: Apache-2.0
//
// Sums of squares by tensor, for the gradient norm, clipping and trust ratios. Called by Optimizer.
//
// 1. The constructor lists which rank owns each row, and the rows of each tensor. On meta it only
//    counts them.
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
  const auto model_ranks = static_cast<std::size_t>(model_.size());
  part_bounds_ = parallel::equal_bounds(model_ranks, (tensors_ + 1) * sizeof(double));
  make_tables(scope.counted.empty() ? std::vector<char>(entries.size(), 1) : scope.counted, memory);
  squares_ = {model_ranks * (tensors_ + 1), memory};
}

/// Makes the tables of rows and of sums by tensor from the layout. Each row has an owner and a
/// number among the rows of that owner. Each sum has the list of the indices of its rows in
/// row_sums_, in the order of the layout.
void SquareSums::make_tables(const std::vector<char>& counted,
                             const parallel::StateMemory& memory) {
  const parallel::FlatLayout& layout = store_.layout();
  const auto ranks = static_cast<std::size_t>(sharded_ ? store_.sharding().size() : 1);
  // Calls take(tensor, owner, rows) for the rows of a tensor that one data rank owns, in flat
  // order.
  const auto for_each_owner = [&](auto&& take) {
    for (const parallel::RowRun& run : layout.runs()) {
      if (store_.list()[{run.tensor}].frozen) break;  // these are last
      const auto bucket = static_cast<std::size_t>(layout.tensor({run.tensor}).bucket);
      const std::vector<std::int64_t>& bounds = store_.owned().buckets()[bucket].bounds;
      const std::int64_t bucket_begin = layout.buckets()[bucket].begin;
      std::size_t owner = parallel::FlatLayout::owner_of(bounds, run.offset - bucket_begin);
      for (std::int64_t row = 0; row < run.rows; ++owner) {
        const std::int64_t end = run.rows_before(bucket_begin + bounds[owner + 1]);
        if (end > row) take(static_cast<std::size_t>(run.tensor), owner, end - row);
        row = end;
      }
    }
  };
  // 1. Rows of each data rank. Each has space for the maximum, so that the gather moves equal
  //    pieces.
  std::vector<std::int64_t> counts(ranks);
  for_each_owner([&](std::size_t tensor, std::size_t owner, std::int64_t rows) {
    counts[owner] += rows;
    if (counted[tensor] != 0) list_terms_ += rows;
  });
  const auto max_rows = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
  row_bounds_ = parallel::equal_bounds(ranks, max_rows * sizeof(double));
  own_row_begin_ = sharded_ ? static_cast<std::size_t>(store_.sharding().rank()) * max_rows : 0;
  // 2. This rank's rows, and the sums of all.
  rows_ = {store_.owned().row_count(), memory, [&](std::span<ops::FlatRow> rows) {
             std::ranges::copy(store_.owned().make_rows(), rows.begin());
           }};
  row_sums_ = {ranks * max_rows, memory};
  // 3. One list of rows for each tensor that this rank counts, and one for all running statistics.
  std::vector<std::vector<std::int64_t>> lists(tensors_ + 1);
  list_indices_ = {
      static_cast<std::size_t>(list_terms_), memory, [&](std::span<std::int64_t> indices) {
        std::ranges::fill(counts, 0);
        for_each_owner([&](std::size_t tensor, std::size_t owner, std::int64_t rows) {
          for (; rows > 0; --rows) {
            const auto number = static_cast<std::int64_t>(owner * max_rows) + counts[owner]++;
            if (counted[tensor] != 0) lists[index_[tensor]].push_back(number);
          }
        });
        auto to = indices.begin();
        for (const std::vector<std::int64_t>& list : lists) to = std::ranges::copy(list, to).out;
      }};
  list_begins_ = {lists.size() + 1, memory, [&](std::span<std::int64_t> begins) {
                    for (std::size_t sum = 0; sum < lists.size(); ++sum)
                      begins[sum + 1] = begins[sum] + static_cast<std::int64_t>(lists[sum].size());
                  }};
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
  ops::row_square_sums(context, elements, rows_.at(context.stream(), window.row_begin),
                       static_cast<std::int64_t>(window.row_end - window.row_begin),
                       row_sums_.at(context.stream(), own_row_begin_ + window.row_begin), limit);
}

void SquareSums::reduce_by_tensor(ops::Context& context) {
  const Stream& stream = context.stream();
  double* const row_sums = row_sums_.at(stream);
  if (sharded_ && row_bounds_.back() > 0) {
    comm::Engine& engine = *store_.sharding().engine;
    engine.wait(engine.all_gather(store_.sharding().data, bytes_at(row_sums), row_bounds_,
                                  "trireme/optim/gather_row_sums"));
  }
  ops::sum_lists(context, {.values = row_sums,
                           .indices = list_indices_.at(stream),
                           .offsets = list_begins_.at(stream),
                           .lists = static_cast<std::int64_t>(tensors_ + 1),
                           .terms = list_terms_,
                           .sums = squares_.at(
                               stream, static_cast<std::size_t>(model_.rank()) * (tensors_ + 1))});
  if (model_.size() > 1)
    engine_->wait(engine_->all_gather(model_, bytes_at(squares_.at(stream)), part_bounds_,
                                      "trireme/optim/gather_square_sums"));
}

ops::PartialSquareSums SquareSums::parts(const Stream& stream) {
  return {.sums = squares_.at(stream),
          .parts = model_.size(),
          .tensors = static_cast<std::int64_t>(tensors_)};
}

}  // namespace trireme::optim
