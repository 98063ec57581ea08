// SPDX-License-Identifier: Apache-2.0
//
// Sums the gradients of a step, bucket by bucket, while backward continues.
//
// 1. begin_step() resets the buckets. begin_backward() and block_begins() choose the memory that
//    backward writes.
// 2. block_done() -> bucket_done(): sums over the tensor group, merges tree levels, starts the
//    data-parallel sum.
// 3. finish() -> complete(): waits for the sums and adds the two copies of tied tensors.
//
// Called by train, inside forward and backward of each micro-batch. There are two ways of holding
// gradients: whole buffers (levels) and bucket buffers.

#include "trireme/parallel/gradient_reducer.hpp"

#include <algorithm>
#include <string_view>

#include "trireme/base/check.hpp"
#include "trireme/base/tree.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::parallel {
namespace {

constexpr std::string_view reduce_label = "trireme/parallel/reduce_bucket",
                           reduce_tied_label = "trireme/parallel/reduce_tied";
// Number of bucket buffers used in turn.
constexpr std::size_t num_turn_buffers = 2;

Tensor allocate_floats(Arena& gradients, std::int64_t elements) {
  return gradients.allocate(DType::float32, {elements});
}

/// Returns null for an undefined tensor (meta, or scratch that is not needed).
float* start_of(const Tensor& buffer) { return static_cast<float*>(buffer.data); }

}  // namespace

GradientReducer::GradientReducer(ParameterStore& store, const Groups& groups, comm::Engine& engine,
                                 const Options& options, Arena& gradients)
    : store_(store),
      groups_(groups),
      engine_(engine),
      options_(options),
      uses_whole_buffers_(store.sharding().kind < ShardKind::gradients ||
                          (options.deterministic && options.micro_batches > 1)),
      sends_bfloat16_(options.transfer_type == comm::TransferType::bfloat16 &&
                      groups.data.size() > 1),
      bucket_states_(store.layout().trained_buckets()),
      step_sums_(options.delayed ? 2 : 1),
      narrow_gradients_(gradients) {
  TRIREME_EXPECT(options.micro_batches > 0);
  TRIREME_EXPECT(groups.data.size() == store.sharding().size() ||
                 store.sharding().kind == ShardKind::none);
  if (groups.tensor != nullptr && groups.tensor->size() > 1) find_partial_ranges();
  split_by_type();
  for (std::size_t which = 0; which < step_sums_.size(); ++which) {
    step_sums_[which].reduced = which == 0
                                    ? store.flat_gradient()
                                    : allocate_floats(gradients, store.owned().trained_elements());
    step_sums_[which].requests.resize(bucket_states_.size());
  }
  uses_whole_buffers_ ? allocate_levels(gradients) : allocate_bucket_buffers(gradients);
  if (!options.measurement) return;
  TRIREME_EXPECT(uses_whole_buffers_ && !options.delayed);
  squares_.emplace(store.list(), store.layout(), engine,
                   MicroBatchSquares::Options{
                       .micro_batches = options.micro_batches,
                       .adds_in_place = !options.deterministic && options.micro_batches > 1,
                       .counted = options.measurement->counted,
                       .target = options.measurement->target,
                       .tied_group = groups.tied_group,
                       .stages = options.measurement->stages},
                   gradients);
}

/// Finds the ranges of partial gradients in flat order. Adjacent tensors of a bucket form one
/// range, including the gap between them.
void GradientReducer::find_partial_ranges() {
  // `grows`: the previous tensor was partial, and in the same bucket.
  bool grows = false;
  int previous = -1;
  // Runs name their tensors in flat order.
  for (const RowRun& run : store_.layout().runs()) {
    if (store_.list()[{run.tensor}].frozen) break;  // these are last
    const FlatLayout::FlatTensor& tensor = store_.layout().tensor({run.tensor});
    if (tensor.bucket != previous) grows = false;
    previous = tensor.bucket;
    const PartialGradient part = store_.list()[{run.tensor}].partial_gradient;
    const bool partial =
        part == PartialGradient::in_any_group ||
        (part == PartialGradient::of_held_rows && groups_.tensor->rows_are_split());
    if (partial) {
      const std::int64_t begin = tensor.offset - bucket_at(tensor.bucket).begin;
      std::vector<ElementRange>& ranges =
          bucket_states_[static_cast<std::size_t>(tensor.bucket)].partial_ranges;
      if (!grows) ranges.push_back({begin, begin});
      ranges.back().end = begin + tensor.elements;
    }
    grows = partial;
  }
}

/// Divides each bucket into weights, sent in the configured type, and statistics, sent as float32.
void GradientReducer::split_by_type() {
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    const FlatLayout::Bucket& whole = bucket_at(bucket);
    const std::vector<std::int64_t>& bounds =
        store_.owned().buckets()[static_cast<std::size_t>(bucket)].bounds;
    const std::int64_t cut = sends_bfloat16_ ? whole.statistics_begin - whole.begin : 0;
    auto& [first, second] = bucket_states_[static_cast<std::size_t>(bucket)].typed_ranges;
    first = {.transfer_type = comm::TransferType::bfloat16,
             .range = {0, cut},
             .bounds = bounds,
             .own = {}};
    second = {.transfer_type = comm::TransferType::float32,
              .range = {cut, whole.elements()},
              .bounds = bounds,
              .own = {}};
    for (std::int64_t& bound : first.bounds) bound = std::min(bound, cut);
    for (std::int64_t& bound : second.bounds) bound = std::max(bound, cut);
    if (store_.sharding().kind == ShardKind::none) continue;
    const auto mine = static_cast<std::size_t>(groups_.data.rank());
    first.own = {0, first.bounds[mine + 1] - first.bounds[mine]};
    second.own = {first.own.end, first.own.end + second.bounds[mine + 1] - second.bounds[mine]};
  }
}

Tensor GradientReducer::allocate_scratch(Arena& gradients, std::int64_t elements) const {
  if (options_.deterministic) return allocate_floats(gradients, elements);
  return sends_bfloat16_ ? gradients.allocate(DType::bfloat16, {elements}) : Tensor{};
}

/// Whole buffers: allocates the tree levels and the scratch memory.
void GradientReducer::allocate_levels(Arena& gradients) {
  const std::int64_t elements = store_.layout().trained_elements();
  for (StepSum& sum : step_sums_)
    sum.level0 = store_.sharding().kind == ShardKind::none ? sum.reduced
                                                           : allocate_floats(gradients, elements);
  for (int level = 1; options_.deterministic && level < TreeWalk(options_.micro_batches).depth();
       ++level)
    levels_.push_back(allocate_floats(gradients, elements));
  if (groups_.data.size() > 1) scratch_ = allocate_scratch(gradients, elements);
}

/// Bucket buffers: allocates two of the largest bucket, and one for each tied bucket.
void GradientReducer::allocate_bucket_buffers(Arena& gradients) {
  const auto take = [&](std::int64_t elements, std::int64_t own_elements) {
    BucketBuffer& buffer = bucket_buffers_.emplace_back();
    buffer.data = allocate_floats(gradients, elements);
    buffer.scratch = allocate_scratch(gradients, elements);
    if (options_.micro_batches > 1) buffer.result = allocate_floats(gradients, own_elements);
  };
  std::int64_t max_elements = 0, max_own_elements = 0;
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    if (bucket_at(bucket).tied) continue;
    max_elements = std::max(max_elements, bucket_at(bucket).elements());
    max_own_elements = std::max(max_own_elements, own_gradient(bucket, 0).elements());
  }
  for (std::size_t turn = 0; turn < num_turn_buffers; ++turn) take(max_elements, max_own_elements);
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    if (!bucket_at(bucket).tied) continue;
    bucket_states_[static_cast<std::size_t>(bucket)].buffer = bucket_buffers_.size();
    take(bucket_at(bucket).elements(), own_gradient(bucket, 0).elements());
  }
}

void GradientReducer::begin_step(double scale, bool measures) {
  TRIREME_EXPECT(!measures || squares_);
  scale_ = scale;
  measures_ = measures;
  for (BucketState& state : bucket_states_) {
    state.micro_batches_done = 0;
    state.top_level = 0;
  }
  current_sum_ = (current_sum_ + 1) % step_sums_.size();
  TRIREME_EXPECT(!step_sums_[current_sum_].under_way);
  step_sums_[current_sum_].under_way = true;
}

ops::Write GradientReducer::begin_backward(ops::Context& context, int first_block, int end_block) {
  ops::Write write = ops::Write::assign;
  open_bucket_ = -1;
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    if (bucket_at(bucket).ready_block < first_block || bucket_at(bucket).ready_block >= end_block)
      continue;
    const BucketState& state = bucket_states_[static_cast<std::size_t>(bucket)];
    TRIREME_EXPECT(state.micro_batches_done < options_.micro_batches);
    if (uses_whole_buffers_) {
      store_.set_bucket_gradient(bucket, level(state.top_level, bucket));
      if (!options_.deterministic && state.micro_batches_done > 0) write = ops::Write::add;
      if (measures_ && write == ops::Write::add)
        squares_->keep(context, bucket, store_.bucket_gradient(bucket));
    } else if (bucket_at(bucket).tied) {
      assign_buffer(context, bucket);
    }
  }
  return write;
}

void GradientReducer::block_begins(ops::Context& context, int block) {
  context.set_narrow_gradients(&narrow_gradients_);
  const int bucket = store_.layout().bucket_of(block);
  if (uses_whole_buffers_ || bucket < 0 || bucket == open_bucket_) return;
  open_bucket_ = bucket;
  bucket_states_[static_cast<std::size_t>(bucket)].buffer = next_buffer_;
  next_buffer_ = 1 - next_buffer_;
  assign_buffer(context, bucket);
}

/// Makes backward write to the bucket's buffer, once the earlier reduction of this buffer is done.
void GradientReducer::assign_buffer(ops::Context& context, int bucket) {
  BucketBuffer& buffer = bucket_buffers_[bucket_states_[static_cast<std::size_t>(bucket)].buffer];
  release_buffer(context, buffer);
  store_.set_bucket_gradient(bucket, buffer.data.rows(0, bucket_at(bucket).elements()));
}

void GradientReducer::block_done(ops::Context& context, int block) {
  engine_.progress();
  context.set_narrow_gradients(nullptr);
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    if (bucket_at(bucket).ready_block == block) bucket_done(context, bucket);
  }
}

void GradientReducer::leave_out(std::int64_t micro_batches) {
  TRIREME_EXPECT(micro_batches_repeat());
  for (BucketState& state : bucket_states_) {
    state.micro_batches_done += micro_batches;
    TRIREME_EXPECT(state.micro_batches_done > micro_batches &&
                   state.micro_batches_done < options_.micro_batches);
  }
}

/// A micro-batch's gradient of a bucket is complete.
void GradientReducer::bucket_done(ops::Context& context, int bucket) {
  BucketState& state = bucket_states_[static_cast<std::size_t>(bucket)];
  // 1. Convert the gradients in 16 bits.
  narrow_gradients_.convert(context);
  const bool last = state.micro_batches_done + 1 == options_.micro_batches;
  Tensor measured;
  if (measures_) measured = own_gradient_of_micro_batch(context, bucket, last);
  // 2. Sum over the tensor group. In the tree a micro-batch is a leaf, so its gradient must be
  //    complete before it is added to others.
  if (last || options_.deterministic || !uses_whole_buffers_) {
    for (const ElementRange& range : state.partial_ranges)
      groups_.tensor->all_reduce(context,
                                 store_.bucket_gradient(bucket).rows(range.begin, range.end));
  }
  if (measures_) squares_->add(context, bucket, state.micro_batches_done, measured);
  // 3. Add micro-batches in tree order, and start the data-parallel sum.
  if (uses_whole_buffers_) {
    if (options_.deterministic) merge_levels(context, bucket);
    if (last) start_whole_reduction(bucket);
  } else {
    start_buffer_reduction(bucket);
  }
  ++state.micro_batches_done;
}

/// Returns the gradient of this micro-batch alone. It is summed over the tensor group, or is the
/// memory that bucket_done() sums over the group.
Tensor GradientReducer::own_gradient_of_micro_batch(ops::Context& context, int bucket,
                                                    bool is_last) {
  const BucketState& state = bucket_states_[static_cast<std::size_t>(bucket)];
  const Tensor& sum = store_.bucket_gradient(bucket);
  if (options_.deterministic) return sum;
  const bool is_added = state.micro_batches_done > 0,
             copies = !is_last && !state.partial_ranges.empty();
  const Tensor own = squares_->own_gradient(context, bucket, sum, is_added, copies);
  for (const ElementRange& range : state.partial_ranges) {
    if (is_added || copies) groups_.tensor->all_reduce(context, own.rows(range.begin, range.end));
  }
  return own;
}

/// Adds the partial sums that this micro-batch completes, from the top level down.
void GradientReducer::merge_levels(ops::Context& context, int bucket) {
  BucketState& state = bucket_states_[static_cast<std::size_t>(bucket)];
  const int merges = TreeWalk(options_.micro_batches).merge_count(state.micro_batches_done);
  for (int merge = 0; merge < merges; ++merge)
    ops::add(context, level(state.top_level - merge, bucket),
             level(state.top_level - merge - 1, bucket));
  state.top_level += 1 - merges;
}

GradientReducer::Requests GradientReducer::reduce(int bucket, const Tensor& data,
                                                  const Tensor& scratch, const Tensor& result) {
  const std::array<TypedRange, 2>& pieces =
      bucket_states_[static_cast<std::size_t>(bucket)].typed_ranges;
  Requests requests{};
  const comm::Engine::Purpose purpose(reduce_label, {"bucket", bucket});
  for (std::size_t at = 0; at < pieces.size(); ++at) {
    const TypedRange& piece = pieces[at];
    const auto [begin, end] = piece.range;
    if (begin == end) continue;
    void* const range_scratch = scratch.defined() ? scratch.rows(begin, end).data : nullptr;
    if (store_.sharding().kind == ShardKind::none) {
      requests[at] =
          engine_.all_reduce(groups_.data, start_of(data.rows(begin, end)), range_scratch,
                             end - begin, order(), purpose, piece.transfer_type);
    } else {
      requests[at] =
          engine_.reduce_scatter(groups_.data, start_of(data), range_scratch, piece.bounds,
                                 start_of(result.rows(piece.own.begin, piece.own.end)), order(),
                                 purpose, piece.transfer_type);
    }
  }
  return requests;
}

void GradientReducer::wait(const Requests& requests) {
  for (const comm::Engine::Request request : requests) engine_.wait(request);
}

/// Whole buffers: starts the data-parallel sum after the last micro-batch.
void GradientReducer::start_whole_reduction(int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  const Tensor scratch =
      scratch_.defined() ? scratch_.rows(bucket_at(bucket).begin, bucket_at(bucket).end) : Tensor{};
  // With `delayed` both sums share the scratch memory, so the earlier one must be done.
  for (const StepSum& other : step_sums_) wait(other.requests[index]);
  step_sums_[current_sum_].requests[index] =
      reduce(bucket, level(0, bucket), scratch, own_gradient(bucket, current_sum_));
}

/// Bucket buffers: starts the data-parallel sum of one micro-batch.
void GradientReducer::start_buffer_reduction(int bucket) {
  const BucketState& state = bucket_states_[static_cast<std::size_t>(bucket)];
  BucketBuffer& buffer = bucket_buffers_[state.buffer];
  buffer.bucket = bucket;
  buffer.step_sum = current_sum_;
  buffer.adds_result = state.micro_batches_done > 0;
  buffer.requests = reduce(bucket, buffer.data, buffer.scratch,
                           buffer.adds_result ? buffer.result : own_gradient(bucket, current_sum_));
}

/// Waits for the reduction of a buffer and adds its result to this rank's part.
void GradientReducer::release_buffer(ops::Context& context, BucketBuffer& buffer) {
  if (buffer.bucket < 0) return;
  wait(buffer.requests);
  const Tensor own = own_gradient(buffer.bucket, buffer.step_sum);
  if (buffer.adds_result) ops::add(context, buffer.result.rows(0, own.elements()), own);
  buffer.bucket = -1;
}

GradientReducer::ReducedGradient GradientReducer::finish(ops::Context& context, bool finite) {
  TRIREME_EXPECT(
      std::all_of(bucket_states_.begin(), bucket_states_.end(), [&](const BucketState& state) {
        return state.micro_batches_done == options_.micro_batches;
      }));
  // With `delayed`, the other of the two sums is returned: that of the step before.
  step_sums_[current_sum_].description = {true, finite, scale_};
  const std::size_t returned = (current_sum_ + 1) % step_sums_.size();
  complete(context, returned);
  store_.set_flat_gradient(step_sums_[returned].reduced);
  if (store_.sharding().kind == ShardKind::none) {
    for (int bucket = 0; bucket < buckets(); ++bucket)
      store_.set_bucket_gradient(bucket, own_gradient(bucket, returned));
  }
  return step_sums_[returned].description;
}

/// Waits until the sum of one step is complete in its memory.
void GradientReducer::complete(ops::Context& context, std::size_t which) {
  StepSum& sum = step_sums_[which];
  if (!sum.under_way) return;
  if (uses_whole_buffers_) {
    for (const Requests& requests : sum.requests) wait(requests);
  } else {
    // The next buffer in turn was used before the other one, so sums are added in the order of the
    // micro-batches.
    const auto free_own = [&](BucketBuffer& buffer) {
      if (buffer.step_sum == which) release_buffer(context, buffer);
    };
    free_own(bucket_buffers_[next_buffer_]);
    free_own(bucket_buffers_[1 - next_buffer_]);
    for (std::size_t tied = num_turn_buffers; tied < bucket_buffers_.size(); ++tied)
      free_own(bucket_buffers_[tied]);
  }
  reduce_tied(which);
  sum.under_way = false;
}

void GradientReducer::complete_pending(ops::Context& context) {
  if (options_.delayed) complete(context, current_sum_);
}

void GradientReducer::set_pending(const ReducedGradient& sum) {
  TRIREME_EXPECT(options_.delayed && !step_sums_[current_sum_].under_way);
  step_sums_[current_sum_].description = sum;
}

/// Tied tensors with copies on the first and the last stage: sums both gradients on both stages.
/// The sum of two terms has the same bits in either order.
void GradientReducer::reduce_tied(std::size_t which) {
  if (groups_.tied_group.size() == 1) return;
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    if (!bucket_at(bucket).tied) continue;
    const Tensor own = own_gradient(bucket, which);
    engine_.wait(engine_.all_reduce(groups_.tied_group, start_of(own), nullptr, own.elements(),
                                    comm::SumOrder::library,
                                    {reduce_tied_label, {"bucket", bucket}}));
  }
}

Tensor GradientReducer::level(int number, int bucket) const {
  const Tensor& flat =
      number == 0 ? step_sums_[current_sum_].level0 : levels_[static_cast<std::size_t>(number) - 1];
  return flat.rows(bucket_at(bucket).begin, bucket_at(bucket).end);
}

Tensor GradientReducer::own_gradient(int bucket, std::size_t which) const {
  const ParameterShard::Bucket& shard = store_.owned().buckets()[static_cast<std::size_t>(bucket)];
  return step_sums_[which].reduced.rows(shard.begin, shard.end);
}

}  // namespace trireme::parallel
