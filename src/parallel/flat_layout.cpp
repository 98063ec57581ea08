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
// Called once per run by train's replica (and on meta by plan); pure arithmetic. All data ranks get
// the same result. The ranks of a tensor group get the same buckets, and cuts between the same
// whole tensors, because both follow from extents of an even division (even_elements).

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

/// Returns the elements of a rank's part if the tensor were divided evenly over the tensor group.
std::int64_t even_elements(const ParameterList& list, const ParameterList::Entry& entry) {
  return entry.partition.replicated()
             ? entry.partition.elements()
             : std::max<std::int64_t>(1, entry.spec.shape.elements() / list.tensor_size());
}

/// Returns the level L with sum(max(0, L - load)) = elements, rounded down.
std::int64_t fill_level(std::vector<std::int64_t> loads, std::int64_t elements) {
  std::ranges::sort(loads);
  std::int64_t below = elements;  // of the level, times the number of shards that it covers
  for (std::size_t covered = 0; covered < loads.size(); ++covered) {
    below += loads[covered];
    const std::int64_t level = below / static_cast<std::int64_t>(covered + 1);
    if (covered + 1 == loads.size() || level <= loads[covered + 1]) return level;
  }
  return 0;
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
  std::int64_t even_position = 0;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const ParameterList::Entry& entry = list.entries()[order[at]];
    if (entry.spec.joined) {
      TRIREME_EXPECT(at > 0 && order[at - 1] + 1 == order[at]);
    } else {
      elements_ = round_up(elements_, alignment_elements);
      even_position = round_up(even_position, alignment_elements);
      working_bytes_ = round_up(working_bytes_, alignment_bytes);
    }
    FlatTensor& tensor = tensors_[order[at]];
    Bucket& bucket = buckets_[static_cast<std::size_t>(tensor.bucket)];
    const bool opens = at == 0 || tensors_[order[at - 1]].bucket != tensor.bucket;
    if (opens) {
      bucket.begin = elements_;
      bucket.even_begin = even_position;
      bucket.working_begin = working_bytes_;
    }
    tensor.offset = elements_;
    tensor.elements = entry.partition.elements();
    tensor.working_begin = working_bytes_;
    tensor.type = entry.spec.compute_copy || (entry.spec.product_bias && target == DeviceKind::cuda)
                      ? compute
                      : DType::float32;
    tensor.block = entry.block;
    const bool whole = entry.spec.atom == Atom::tensor;
    const std::int64_t rows = entry.partition.rows();
    has_whole_tensors_ = has_whole_tensors_ || whole;
    if (tensor.elements > 0) {
      row_runs_.push_back(
          {elements_, tensor.elements / rows, rows, static_cast<std::int32_t>(order[at]), whole});
      even_runs_.push_back({even_position, even_elements(list, entry)});
    }
    elements_ += tensor.elements;
    even_position += even_elements(list, entry);
    working_bytes_ += tensor.elements * size_of(tensor.type);
    bucket.end = round_up(elements_, alignment_elements);
    bucket.even_end = round_up(even_position, alignment_elements);
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
               even_elements(list, entry);
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

/// Returns the row boundary closest to a position. A tensor group's ranks may have different
/// numbers of rows of one tensor, so inside of it `even` is the position itself, for all of them.
FlatLayout::Cut FlatLayout::closest_cut(const Bucket& bucket, std::int64_t even_position) const {
  const auto first = first_run_from(row_runs_, bucket.begin) - row_runs_.begin(),
             last = first_run_from(row_runs_, bucket.end) - row_runs_.begin();
  const auto next =
      std::lower_bound(
          even_runs_.begin() + first, even_runs_.begin() + last, even_position,
          [](const EvenRun& run, std::int64_t position) { return run.begin < position; }) -
      even_runs_.begin();
  // `above` is at the position or behind it, `below` in front.
  const Cut above = next == last ? Cut{bucket.end, bucket.even_end}
                                 : Cut{row_runs_[static_cast<std::size_t>(next)].offset,
                                       even_runs_[static_cast<std::size_t>(next)].begin};
  if (next == first) return above;
  const RowRun& run = row_runs_[static_cast<std::size_t>(next - 1)];
  const EvenRun& even = even_runs_[static_cast<std::size_t>(next - 1)];
  const auto closer = [&](const Cut& behind, const Cut& before) {
    return behind.even - even_position <= even_position - before.even ? behind : before;
  };
  if (run.whole) return closer(above, {run.offset, even.begin});
  const auto row_cut = [&](std::int64_t row) {
    return Cut{run.begin_of(row), even.begin + row * even.elements / run.rows};
  };
  const std::int64_t row = std::min(
      run.rows, ((even_position - even.begin) * run.rows + even.elements - 1) / even.elements);
  return {closer(row < run.rows ? row_cut(row) : above, row_cut(row - 1)).offset, even_position};
}

std::size_t FlatLayout::owner_of(const std::vector<std::int64_t>& bounds, std::int64_t position) {
  return static_cast<std::size_t>(std::upper_bound(bounds.begin(), bounds.end(), position) -
                                  bounds.begin() - 1);
}

std::vector<std::vector<std::int64_t>> FlatLayout::shard_bounds(int shards) const {
  TRIREME_EXPECT(shards > 0);
  std::vector<std::vector<std::int64_t>> all;
  std::vector<std::int64_t> loads(static_cast<std::size_t>(shards));  // elements so far
  for (const Bucket& bucket : buckets_) {
    const std::int64_t elements = bucket.even_end - bucket.even_begin;
    // Both stages that hold a tied tensor must cut it alike, whatever else they hold.
    const bool levels = has_whole_tensors_ && !bucket.frozen && !bucket.tied;
    const std::int64_t level = levels ? fill_level(loads, elements) : 0;
    std::vector<std::int64_t>& bounds = all.emplace_back(1, bucket.begin);
    std::int64_t position = bucket.even_begin, before = bucket.even_begin;
    for (int shard = 1; shard <= shards; ++shard) {
      std::int64_t& load = loads[static_cast<std::size_t>(shard) - 1];
      position = levels ? position + std::max<std::int64_t>(0, level - load)
                        : bucket.even_begin + elements * shard / shards;
      const Cut cut =
          shard == shards ? Cut{bucket.end, bucket.even_end} : closest_cut(bucket, position);
      bounds.push_back(cut.offset);
      if (!bucket.frozen) load += cut.even - before;
      before = cut.even;
    }
  }
  return all;
}

std::vector<std::int64_t> FlatLayout::working_bounds(const Bucket& bucket,
                                                     std::vector<std::int64_t> bounds) const {
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
