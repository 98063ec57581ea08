// SPDX-License-Identifier: Apache-2.0
//
// Squared norms of the gradients of single micro-batches. Called by GradientReducer in the steps
// that are measured for the gradient noise scale.
//
// 1. keep() copies the sum before backward; own_gradient() subtracts the sum after it.
// 2. add() enqueues one sum of squares for each row of the bucket, and the sum of those.
// 3. Tied tensors on two stages take another way: their gradients are summed over both stages
//    first, while backward continues.
// 4. finish() adds the sums of all buckets and micro-batches.

#include "trireme/parallel/micro_batch_squares.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/update/step_decision.hpp"

namespace trireme::parallel {

MicroBatchSquares::MicroBatchSquares(const ParameterList& list, const FlatLayout& layout,
                                     comm::Engine& engine, Options options, Arena& gradients)
    : layout_(layout), engine_(engine), options_(std::move(options)) {
  // 1. The rows of each bucket, which are adjacent in flat order.
  const auto& entries = list.entries();
  TRIREME_EXPECT(options_.counted.empty() || options_.counted.size() == entries.size());
  std::vector<RowRun> runs;
  std::int64_t rows = 0;
  for (const RowRun& run : layout.runs()) {
    const auto tensor = static_cast<std::size_t>(run.tensor);
    const auto bucket = static_cast<std::size_t>(layout.tensors()[tensor].bucket);
    if (bucket >= layout.trained_buckets()) break;  // frozen ones are last
    begins_.resize(bucket + 1, rows);
    if (entries[tensor].spec.role == Role::statistic ||
        (!options_.counted.empty() && options_.counted[tensor] == 0))
      continue;
    runs.push_back(run);
    runs.back().offset -= layout.buckets()[bucket].begin;
    rows += run.rows;
  }
  begins_.resize(layout.trained_buckets() + 1, rows);
  // 2. Sums and tables.
  const std::size_t sums =
      static_cast<std::size_t>(options_.micro_batches) * layout.trained_buckets();
  begins_.push_back(0);
  begins_.push_back(static_cast<std::int64_t>(sums));
  const auto row_count = static_cast<std::size_t>(rows);
  const StateMemory memory(gradients, nullptr, options_.target);
  rows_ = {row_count, memory,
           [&](std::span<ops::FlatRow> to) { std::ranges::copy(make_rows(runs), to.begin()); }};
  begins_table_ = {begins_, memory};
  indices_ = {std::max(row_count, sums), memory,
              [](std::span<std::int64_t> to) { std::iota(to.begin(), to.end(), std::int64_t{0}); }};
  row_sums_ = {row_count, memory};
  sums_ = {sums + 1, memory};
  // 3. Buffers.
  if (options_.adds_in_place)
    kept_ = gradients.allocate(DType::float32, {layout.trained_elements()});
  for (std::size_t bucket = 0; bucket < layout.trained_buckets(); ++bucket) {
    tied_begin_.push_back(tied_sums_.size());
    if (!layout.buckets()[bucket].tied || options_.tied_group.size() == 1) continue;
    for (int copy = 0; copy < options_.stages; ++copy)
      tied_sums_.push_back(
          {.data = gradients.allocate(DType::float32, {layout.buckets()[bucket].elements()}),
           .bucket = static_cast<int>(bucket)});
  }
}

void MicroBatchSquares::keep(ops::Context& context, int bucket, const Tensor& sum) {
  ops::copy(context, sum, kept_.rows(bucket_at(bucket).begin, bucket_at(bucket).end));
}

Tensor MicroBatchSquares::own_gradient(ops::Context& context, int bucket, const Tensor& sum,
                                       bool is_added, bool copies) {
  if (!is_added && !copies) return sum;
  const Tensor own = kept_.rows(bucket_at(bucket).begin, bucket_at(bucket).end);
  // The sign does not matter for squares.
  if (is_added)
    ops::scaled_copy(context, sum, -1, own, ops::Write::add);
  else
    ops::copy(context, sum, own);
  return own;
}

void MicroBatchSquares::add(ops::Context& context, int bucket, std::int64_t micro_batch,
                            const Tensor& gradient) {
  if (!bucket_at(bucket).tied || options_.tied_group.size() == 1)
    return measure(context, bucket, micro_batch, gradient);
  TiedSum& sum = tied_sums_[tied_begin_[static_cast<std::size_t>(bucket)] +
                            static_cast<std::size_t>(micro_batch % options_.stages)];
  complete(context, sum);
  ops::copy(context, gradient, sum.data);
  sum.micro_batch = micro_batch;
  sum.request = engine_.all_reduce(
      options_.tied_group, static_cast<float*>(sum.data.data), nullptr, sum.data.elements(),
      comm::SumOrder::library,
      {"trireme/parallel/reduce_tied_micro_batch", {"micro-batch", micro_batch}});
}

/// Waits for the sum over both stages, and measures it.
void MicroBatchSquares::complete(ops::Context& context, TiedSum& sum) {
  if (sum.micro_batch < 0) return;
  engine_.wait(sum.request);
  measure(context, sum.bucket, sum.micro_batch, sum.data);
  sum.micro_batch = -1;
}

/// Enqueues the sum of squares of one bucket.
void MicroBatchSquares::measure(ops::Context& context, int bucket, std::int64_t micro_batch,
                                const Tensor& gradient) {
  const Stream& stream = context.stream();
  const auto index = static_cast<std::size_t>(bucket);
  const auto begin = static_cast<std::size_t>(begins_[index]);
  const std::int64_t count = begins_[index + 1] - begins_[index];
  ops::row_square_sums(context, gradient, rows_.at(stream, begin), count,
                       row_sums_.at(stream, begin));
  ops::sum_lists(
      context,
      {.values = row_sums_.at(stream),
       .indices = indices_.at(stream),
       .offsets = begins_table_.view(stream) + index,
       .lists = 1,
       .terms = count,
       .sums = sums_.at(
           stream, static_cast<std::size_t>(micro_batch) * layout_.trained_buckets() + index)});
}

const double* MicroBatchSquares::finish(ops::Context& context) {
  // In the order in which the sums of each bucket began.
  for (std::int64_t turn = 0; turn < options_.micro_batches; ++turn) {
    for (TiedSum& sum : tied_sums_) {
      if (sum.micro_batch == turn) complete(context, sum);
    }
  }
  const Stream& stream = context.stream();
  const std::int64_t terms = begins_.back();
  double* const sum = sums_.at(stream, static_cast<std::size_t>(terms));
  ops::sum_lists(context, {.values = sums_.at(stream),
                           .indices = indices_.at(stream),
                           .offsets = begins_table_.view(stream) + layout_.trained_buckets() + 1,
                           .lists = 1,
                           .terms = terms,
                           .sums = sum});
  return sum;
}

}  // namespace trireme::parallel
