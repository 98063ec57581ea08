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
#include "trireme/ops/step_decision.hpp"

namespace trireme::parallel {

MicroBatchSquares::MicroBatchSquares(const ParameterList& list, const FlatLayout& layout,
                                     comm::Engine& engine, Options options, Arena& gradients)
    : layout_(layout), engine_(engine), options_(std::move(options)) {
  // 1. The rows of each bucket, which are adjacent in flat order.
  const auto& entries = list.entries();
  TRIREME_EXPECT(options_.counted.empty() || options_.counted.size() == entries.size());
  for (std::size_t bucket = 0; bucket < layout.trained_buckets(); ++bucket) {
    begins_.push_back(static_cast<std::int64_t>(rows_.size()));
    for (const ops::FlatRow& row : layout.rows()) {
      const auto tensor = static_cast<std::size_t>(row.tensor);
      if (layout.tensors()[tensor].bucket != static_cast<int>(bucket) ||
          entries[tensor].spec.role == Role::statistic ||
          (!options_.counted.empty() && options_.counted[tensor] == 0))
        continue;
      rows_.push_back(row);
      rows_.back().offset -= layout.buckets()[bucket].begin;
    }
  }
  begins_.push_back(static_cast<std::int64_t>(rows_.size()));
  // 2. Sums and tables.
  const std::size_t sums =
      static_cast<std::size_t>(options_.micro_batches) * layout.trained_buckets();
  begins_.push_back(0);
  begins_.push_back(static_cast<std::int64_t>(sums));
  indices_.resize(std::max(rows_.size(), sums));
  std::iota(indices_.begin(), indices_.end(), std::int64_t{0});
  row_sums_.resize(rows_.size());
  sums_.resize(sums + 1);
  const StateMemory memory(gradients, nullptr, options_.target);
  rows_table_ = {rows_, memory};
  begins_table_ = {begins_, memory};
  indices_table_ = {indices_, memory};
  row_sums_table_ = {row_sums_, memory};
  sums_table_ = {sums_, memory};
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
  const std::int64_t begin = begins_[index], count = begins_[index + 1] - begin;
  double* const row_sums = row_sums_table_.view(stream);
  ops::row_square_sums(context, gradient, rows_table_.view(stream) + begin, count,
                       row_sums + begin);
  ops::sum_lists(
      context, {.values = row_sums,
                .indices = indices_table_.view(stream),
                .offsets = begins_table_.view(stream) + index,
                .lists = 1,
                .terms = count,
                .sums = sums_table_.view(stream) +
                        static_cast<std::size_t>(micro_batch) * layout_.trained_buckets() + index});
}

const double* MicroBatchSquares::finish(ops::Context& context) {
  // In the order in which the sums of each bucket began.
  for (std::int64_t turn = 0; turn < options_.micro_batches; ++turn) {
    for (TiedSum& sum : tied_sums_) {
      if (sum.micro_batch == turn) complete(context, sum);
    }
  }
  const Stream& stream = context.stream();
  double* const sums = sums_table_.view(stream);
  const std::int64_t terms = begins_.back();
  ops::sum_lists(context, {.values = sums,
                           .indices = indices_table_.view(stream),
                           .offsets = begins_table_.view(stream) + layout_.trained_buckets() + 1,
                           .lists = 1,
                           .terms = terms,
                           .sums = sums + terms});
  return sums + terms;
}

}  // namespace trireme::parallel
