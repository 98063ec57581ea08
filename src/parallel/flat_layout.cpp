// SPDX-License-Identifier: Apache-2.0
//
// Computes the positions of all parameters in the flat buffers, and the buckets.
//
// 1. Order parameters by the end of their gradients in backward: last block first, then tied ones;
//    frozen ones last, in the same order.
// 2. Close buckets at block ends when they are full (close_buckets).
// 3. Within each bucket, move statistics behind weights.
// 4. Assign offsets, with gaps for alignment, and list the runs of rows.
//
// Called once per run by train's replica (and on meta by plan); pure arithmetic, alike on all
// ranks.

#include "trireme/parallel/flat_layout.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/base/check.hpp"

namespace trireme::parallel {
namespace {

// One cache line: vector loads of every tensor are aligned, and no two tensors share a line.
constexpr std::int64_t alignment_bytes = 64;
constexpr std::int64_t alignment_elements = alignment_bytes / size_of(DType::float32);

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns the indices of the parameters in the order in which backward finishes them: last block
/// first, as declared within a block; then the tied ones in the same order. Frozen ones follow.
std::vector<std::size_t> backward_order(const ParameterList& list) {
  std::vector<std::size_t> order(list.entries().size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const ParameterList::Entry &first = list.entries()[a], &second = list.entries()[b];
    if (first.spec.frozen != second.spec.frozen) return second.spec.frozen;
    return first.spec.tied != second.spec.tied ? second.spec.tied : first.block > second.block;
  });
  return order;
}

/// Returns whether backward enters another chunk between block `from` and block `to`.
bool crosses_chunk(std::span<const int> chunk_begins, int from, int to) {
  return std::any_of(chunk_begins.begin(), chunk_begins.end(),
                     [&](int begin) { return to < begin && begin <= from; });
}

/// Returns the first run that begins at `offset` or behind it.
std::vector<RowRun>::const_iterator first_run_from(const std::vector<RowRun>& runs,
                                                   std::int64_t offset) {
  return std::lower_bound(
      runs.begin(), runs.end(), offset,
      [](const RowRun& run, std::int64_t position) { return run.offset < position; });
}

}  // namespace

std::vector<ops::FlatRow> make_rows(std::span<const RowRun> runs) {
  std::vector<ops::FlatRow> rows;
  for (const RowRun& run : runs) {
    for (std::int64_t row = 0; row < run.rows; ++row)
      rows.push_back({run.begin_of(row), run.row_elements, run.tensor});
  }
  return rows;
}

FlatLayout::FlatLayout(const ParameterList& list, std::int64_t bucket_bytes, DType compute,
                       std::span<const int> chunk_begins, DeviceKind target)
    : tensors_(list.entries().size()),
      bucket_of_(static_cast<std::size_t>(list.blocks()), -1),
      frozen_bucket_of_(bucket_of_),
      compute_(compute) {
  TRIREME_EXPECT(ops::is_compute_type(compute));
  // 1. and 2. Order the parameters and assign them to buckets.
  std::vector<std::size_t> order = backward_order(list);
  close_buckets(list, order, bucket_bytes, chunk_begins);
  // 3. Statistics behind the weights of their bucket.
  const auto place = [&](std::size_t index) {
    return std::pair(tensors_[index].bucket, list.entries()[index].spec.role == Role::statistic);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  // 4. Offsets and rows.
  for (std::size_t at = 0; at < order.size(); ++at) {
    const ParameterList::Entry& entry = list.entries()[order[at]];
    if (entry.spec.joined) {
      TRIREME_EXPECT(at > 0 && order[at - 1] + 1 == order[at]);
    } else {
      elements_ = round_up(elements_, alignment_elements);
      working_bytes_ = round_up(working_bytes_, alignment_bytes);
    }
    FlatTensor& tensor = tensors_[order[at]];
    Bucket& bucket = buckets_[static_cast<std::size_t>(tensor.bucket)];
    const bool opens = at == 0 || tensors_[order[at - 1]].bucket != tensor.bucket;
    if (opens) {
      bucket.begin = elements_;
      bucket.working_begin = working_bytes_;
    }
    tensor.offset = elements_;
    tensor.elements = entry.partition.elements();
    tensor.working_begin = working_bytes_;
    tensor.type = entry.spec.compute_copy || (entry.spec.product_bias && target == DeviceKind::cuda)
                      ? compute
                      : DType::float32;
    tensor.block = entry.block;
    const std::int64_t rows = entry.spec.atom == Atom::tensor ? 1 : entry.partition.rows();
    if (tensor.elements > 0)
      row_runs_.push_back(
          {elements_, tensor.elements / rows, rows, static_cast<std::int32_t>(order[at])});
    elements_ += tensor.elements;
    working_bytes_ += tensor.elements * size_of(tensor.type);
    bucket.end = round_up(elements_, alignment_elements);
    bucket.working_end = round_up(working_bytes_, alignment_bytes);
    if (entry.spec.role == Role::weight)
      bucket.statistics_begin = bucket.end;
    else if (opens)
      bucket.statistics_begin = bucket.begin;
  }
  elements_ = round_up(elements_, alignment_elements);
  working_bytes_ = round_up(working_bytes_, alignment_bytes);
  // 5. The part that is trained.
  trained_buckets_ = static_cast<std::size_t>(std::count_if(
      buckets_.begin(), buckets_.end(), [](const Bucket& bucket) { return !bucket.frozen; }));
  trained_elements_ =
      trained_buckets_ < buckets_.size() ? buckets_[trained_buckets_].begin : elements_;
}

/// Assigns each parameter to a bucket and determines the block after which the bucket is ready.
void FlatLayout::close_buckets(const ParameterList& list, std::span<const std::size_t> order,
                               std::int64_t bucket_bytes, std::span<const int> chunk_begins) {
  std::int64_t elements = 0;  // in the open bucket
  for (std::size_t at = 0; at < order.size(); ++at) {
    const ParameterList::Entry& entry = list.entries()[order[at]];
    const ParameterList::Entry* next =
        at + 1 < order.size() ? &list.entries()[order[at + 1]] : nullptr;
    tensors_[order[at]].bucket = static_cast<int>(buckets_.size());
    if (!entry.spec.tied)
      (entry.spec.frozen ? frozen_bucket_of_ : bucket_of_)[static_cast<std::size_t>(entry.block)] =
          tensors_[order[at]].bucket;
    elements = (entry.spec.joined ? elements : round_up(elements, alignment_elements)) +
               entry.partition.elements();
    const bool alone = entry.spec.tied || next == nullptr || next->spec.tied ||
                       next->spec.frozen != entry.spec.frozen;
    const bool block_ends = alone || next->block != entry.block;
    const bool full =
        round_up(elements, alignment_elements) * size_of(DType::float32) >= bucket_bytes;
    if (!alone && !(block_ends && (full || crosses_chunk(chunk_begins, entry.block, next->block))))
      continue;
    Bucket& closed = buckets_.emplace_back();
    closed.ready_block = entry.block;
    closed.tied = entry.spec.tied;
    closed.frozen = entry.spec.frozen;
    elements = 0;
  }
}

std::vector<std::int64_t> FlatLayout::shard_bounds(const Bucket& bucket, int shards) const {
  TRIREME_EXPECT(shards > 0);
  const auto first = first_run_from(row_runs_, bucket.begin),
             last = first_run_from(row_runs_, bucket.end);
  std::vector<std::int64_t> bounds{bucket.begin};
  for (int shard = 1; shard < shards; ++shard) {
    // The row boundaries closest to the even cut: `above` is at it or behind it, `below` in front.
    const std::int64_t ideal = bucket.begin + bucket.elements() * shard / shards;
    const auto next = std::lower_bound(
        first, last, ideal,
        [](const RowRun& run, std::int64_t position) { return run.offset < position; });
    std::int64_t above = next == last ? bucket.end : next->offset, below = above;
    if (next != first) {
      const RowRun& run = *(next - 1);
      const std::int64_t rows = run.rows_before(ideal);
      below = run.begin_of(rows - 1);
      if (rows < run.rows) above = run.begin_of(rows);
    }
    bounds.push_back(next == first || above - ideal <= ideal - below ? above : below);
  }
  bounds.push_back(bucket.end);
  return bounds;
}

std::vector<std::int64_t> FlatLayout::working_bounds(const Bucket& bucket, int shards) const {
  std::vector<std::int64_t> bounds = shard_bounds(bucket, shards);
  for (std::int64_t& bound : bounds) {
    if (bound == bucket.begin || bound == bucket.end) {
      bound = bound == bucket.begin ? bucket.working_begin : bucket.working_end;
      continue;
    }
    // Any other cut is the begin of a row, of the last run that begins at it or in front of it.
    const RowRun& run = *(first_run_from(row_runs_, bound + 1) - 1);
    const FlatTensor& tensor = tensors_[static_cast<std::size_t>(run.tensor)];
    bound = tensor.working_begin + (bound - tensor.offset) * size_of(tensor.type);
  }
  return bounds;
}

}  // namespace trireme::parallel
