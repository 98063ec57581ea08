#include "trireme/parallel/gradient_reducer.hpp"

#include <algorithm>
#include <string_view>

#include "trireme/base/check.hpp"
#include "trireme/base/tree.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::parallel {
namespace {

constexpr std::string_view reduce_label = "trireme/parallel/reduce_bucket";
constexpr std::size_t turns = 2;

Tensor take_buffer(Arena& gradients, std::int64_t elements) {
  return gradients.allocate(DType::float32, {elements});
}

/// Null where there is none (meta; a scratch that is not needed).
float* start_of(const Tensor& buffer) { return static_cast<float*>(buffer.data); }

}  // namespace

GradientReducer::GradientReducer(ParameterStore& store, const Groups& groups, comm::Engine& engine,
                                 const Options& options, Arena& gradients)
    : store_(store),
      groups_(groups),
      engine_(engine),
      options_(options),
      whole_(store.sharding().kind < ShardKind::gradients ||
             (options.deterministic && options.micro_batches > 1)),
      narrow_(options.wire == comm::TransferType::bfloat16 && groups.data.size() > 1),
      states_(store.layout().buckets().size()),
      sums_(options.delayed ? 2 : 1) {
  TRIREME_EXPECT(options.micro_batches > 0);
  TRIREME_EXPECT(groups.data.size() == store.sharding().size() ||
                 store.sharding().kind == ShardKind::none);
  if (groups.tensor != nullptr && groups.tensor->sequence() && groups.tensor->size() > 1)
    find_partial();
  cut_pieces();
  for (std::size_t which = 0; which < sums_.size(); ++which) {
    sums_[which].reduced =
        which == 0 ? store.flat_gradient() : take_buffer(gradients, store.owned().elements());
    sums_[which].tickets.resize(states_.size());
  }
  whole_ ? take_levels(gradients) : take_lanes(gradients);
}

/// Ranges of partial gradients in flat order; neighbours within a bucket become one, with the gap
/// between them.
void GradientReducer::find_partial() {
  std::int32_t previous = -1;  // tensor
  bool grows = false;          // the tensor before was partial, and in the same bucket
  for (const ops::FlatRow& row : store_.layout().rows()) {  // rows name the tensors in flat order
    if (row.tensor == previous) continue;
    const FlatLayout::Slot& slot = store_.layout().slot({row.tensor});
    if (previous >= 0 && store_.layout().slot({previous}).bucket != slot.bucket) grows = false;
    previous = row.tensor;
    const bool partial = store_.list()[{row.tensor}].partial_gradient;
    if (partial) {
      const std::int64_t begin = slot.offset - bucket_at(slot.bucket).begin;
      std::vector<Range>& ranges = states_[static_cast<std::size_t>(slot.bucket)].partial;
      if (!grows) ranges.push_back({begin, begin});
      ranges.back().end = begin + slot.elements;
    }
    grows = partial;
  }
}

/// Weights as the options say, statistics in float32.
void GradientReducer::cut_pieces() {
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    const FlatLayout::Bucket& whole = bucket_at(bucket);
    const std::vector<std::int64_t>& bounds =
        store_.owned().buckets()[static_cast<std::size_t>(bucket)].bounds;
    const std::int64_t cut = narrow_ ? whole.statistics_begin - whole.begin : 0;
    auto& [first, second] = states_[static_cast<std::size_t>(bucket)].pieces;
    first = {.wire = comm::TransferType::bfloat16, .range = {0, cut}, .bounds = bounds, .own = {}};
    second = {.wire = comm::TransferType::float32,
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

Tensor GradientReducer::take_scratch(Arena& gradients, std::int64_t elements) const {
  if (options_.deterministic) return take_buffer(gradients, elements);
  return narrow_ ? gradients.allocate(DType::bfloat16, {elements}) : Tensor{};
}

void GradientReducer::take_levels(Arena& gradients) {
  const std::int64_t elements = store_.layout().elements();
  for (Making& sum : sums_)
    sum.lowest =
        store_.sharding().kind == ShardKind::none ? sum.reduced : take_buffer(gradients, elements);
  for (int level = 1; options_.deterministic && level < TreeWalk(options_.micro_batches).depth();
       ++level)
    levels_.push_back(take_buffer(gradients, elements));
  if (groups_.data.size() > 1) exchange_ = take_scratch(gradients, elements);
}

void GradientReducer::take_lanes(Arena& gradients) {
  const auto take = [&](std::int64_t elements, std::int64_t own_elements) {
    Lane& lane = lanes_.emplace_back();
    lane.data = take_buffer(gradients, elements);
    lane.scratch = take_scratch(gradients, elements);
    if (options_.micro_batches > 1) lane.result = take_buffer(gradients, own_elements);
  };
  std::int64_t longest = 0, longest_own = 0;
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    if (bucket_at(bucket).tied) continue;
    longest = std::max(longest, bucket_at(bucket).elements());
    longest_own = std::max(longest_own, own_gradient(bucket, 0).elements());
  }
  for (std::size_t turn = 0; turn < turns; ++turn) take(longest, longest_own);
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    if (!bucket_at(bucket).tied) continue;
    states_[static_cast<std::size_t>(bucket)].lane = lanes_.size();
    take(bucket_at(bucket).elements(), own_gradient(bucket, 0).elements());
  }
}

void GradientReducer::begin_step(double scale) {
  scale_ = scale;
  for (State& state : states_) {
    state.done = 0;
    state.top = 0;
  }
  now_ = (now_ + 1) % sums_.size();
  TRIREME_EXPECT(!sums_[now_].under_way);
  sums_[now_].under_way = true;
}

ops::Write GradientReducer::begin_backward(ops::Context& context, int first_block, int end_block) {
  ops::Write write = ops::Write::assign;
  open_ = -1;
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    if (bucket_at(bucket).ready_block < first_block || bucket_at(bucket).ready_block >= end_block)
      continue;
    const State& state = states_[static_cast<std::size_t>(bucket)];
    TRIREME_EXPECT(state.done < options_.micro_batches);
    if (whole_) {
      store_.direct_gradient(bucket, level(state.top, bucket));
      if (!options_.deterministic && state.done > 0) write = ops::Write::add;
    } else if (bucket_at(bucket).tied) {
      direct_to_lane(context, bucket);
    }
  }
  return write;
}

void GradientReducer::block_begins(ops::Context& context, int block) {
  const int bucket = store_.layout().bucket_of(block);
  if (whole_ || bucket < 0 || bucket == open_) return;
  open_ = bucket;
  states_[static_cast<std::size_t>(bucket)].lane = turn_;
  turn_ = 1 - turn_;
  direct_to_lane(context, bucket);
}

void GradientReducer::direct_to_lane(ops::Context& context, int bucket) {
  Lane& lane = lanes_[states_[static_cast<std::size_t>(bucket)].lane];
  free_lane(context, lane);
  store_.direct_gradient(bucket, lane.data.rows(0, bucket_at(bucket).elements()));
}

void GradientReducer::block_done(ops::Context& context, int block) {
  engine_.progress();
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    if (bucket_at(bucket).ready_block == block) bucket_done(context, bucket);
  }
}

void GradientReducer::bucket_done(ops::Context& context, int bucket) {
  State& state = states_[static_cast<std::size_t>(bucket)];
  const bool last = state.done + 1 == options_.micro_batches;
  // Under the tree a micro-batch's gradient is the leaf, so it is whole before it is added to
  // others.
  if (last || options_.deterministic || !whole_) {
    for (const Range& range : state.partial)
      groups_.tensor->all_reduce(context,
                                 store_.bucket_gradient(bucket).rows(range.begin, range.end));
  }
  if (whole_) {
    if (options_.deterministic) merge_levels(context, bucket);
    if (last) reduce_level(bucket);
  } else {
    reduce_lane(bucket);
  }
  ++state.done;
}

void GradientReducer::merge_levels(ops::Context& context, int bucket) {
  State& state = states_[static_cast<std::size_t>(bucket)];
  const int merges = TreeWalk(options_.micro_batches).merge_count(state.done);
  for (int merge = 0; merge < merges; ++merge)
    ops::add(context, level(state.top - merge, bucket), level(state.top - merge - 1, bucket));
  state.top += 1 - merges;
}

GradientReducer::Tickets GradientReducer::reduce(int bucket, const Tensor& data,
                                                 const Tensor& scratch, const Tensor& result) {
  const std::array<Piece, 2>& pieces = states_[static_cast<std::size_t>(bucket)].pieces;
  Tickets tickets{};
  for (std::size_t at = 0; at < pieces.size(); ++at) {
    const Piece& piece = pieces[at];
    const auto [begin, end] = piece.range;
    if (begin == end) continue;
    void* const between = scratch.defined() ? scratch.rows(begin, end).data : nullptr;
    if (store_.sharding().kind == ShardKind::none) {
      tickets[at] = engine_.all_reduce(groups_.data, start_of(data.rows(begin, end)), between,
                                       end - begin, order(), reduce_label, piece.wire);
    } else {
      tickets[at] = engine_.reduce_scatter(groups_.data, start_of(data), between, piece.bounds,
                                           start_of(result.rows(piece.own.begin, piece.own.end)),
                                           order(), reduce_label, piece.wire);
    }
  }
  return tickets;
}

void GradientReducer::wait(const Tickets& tickets) {
  for (const comm::Engine::Request ticket : tickets) engine_.wait(ticket);
}

void GradientReducer::reduce_level(int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  const Tensor scratch = exchange_.defined()
                             ? exchange_.rows(bucket_at(bucket).begin, bucket_at(bucket).end)
                             : Tensor{};
  for (const Making& other : sums_)
    wait(other.tickets[index]);  // the scratch memory is one: the step before is done with it by
                                 // now, or late
  sums_[now_].tickets[index] =
      reduce(bucket, level(0, bucket), scratch, own_gradient(bucket, now_));
}

void GradientReducer::reduce_lane(int bucket) {
  const State& state = states_[static_cast<std::size_t>(bucket)];
  Lane& lane = lanes_[state.lane];
  lane.bucket = bucket;
  lane.sum = now_;
  lane.adds = state.done > 0;
  lane.tickets =
      reduce(bucket, lane.data, lane.scratch, lane.adds ? lane.result : own_gradient(bucket, now_));
}

void GradientReducer::free_lane(ops::Context& context, Lane& lane) {
  if (lane.bucket < 0) return;
  wait(lane.tickets);
  const Tensor own = own_gradient(lane.bucket, lane.sum);
  if (lane.adds) ops::add(context, lane.result.rows(0, own.elements()), own);
  lane.bucket = -1;
}

GradientReducer::Sum GradientReducer::finish(ops::Context& context, bool finite) {
  TRIREME_EXPECT(std::all_of(states_.begin(), states_.end(), [&](const State& state) {
    return state.done == options_.micro_batches;
  }));
  sums_[now_].told = {true, finite, scale_};
  const std::size_t handed_on = (now_ + 1) % sums_.size();  // delayed: the other one
  complete(context, handed_on);
  store_.direct_flat_gradient(sums_[handed_on].reduced);
  if (store_.sharding().kind == ShardKind::none) {
    for (int bucket = 0; bucket < buckets(); ++bucket)
      store_.direct_gradient(bucket, own_gradient(bucket, handed_on));
  }
  return sums_[handed_on].told;
}

/// Until one step's sum stands in its memory.
void GradientReducer::complete(ops::Context& context, std::size_t which) {
  Making& sum = sums_[which];
  if (!sum.under_way) return;
  if (whole_) {
    for (const Tickets& tickets : sum.tickets) wait(tickets);
  } else {
    // The lane that would be next was used before the other: sums are made in the order of the
    // micro-batches.
    const auto free_own = [&](Lane& lane) {
      if (lane.sum == which) free_lane(context, lane);
    };
    free_own(lanes_[turn_]);
    free_own(lanes_[1 - turn_]);
    for (std::size_t tied = turns; tied < lanes_.size(); ++tied) free_own(lanes_[tied]);
  }
  add_ends(which);
  sum.under_way = false;
}

void GradientReducer::settle(ops::Context& context) {
  if (options_.delayed) complete(context, now_);
}

void GradientReducer::set_pending(const Sum& sum) {
  TRIREME_EXPECT(options_.delayed && !sums_[now_].under_way);
  sums_[now_].told = sum;
}

/// Tied tensors with a copy at the first and at the last stage: both get the sum of what either
/// has. The sum of two is the same bits in any order.
void GradientReducer::add_ends(std::size_t which) {
  if (groups_.ends.size() == 1) return;
  for (int bucket = 0; bucket < buckets(); ++bucket) {
    if (!bucket_at(bucket).tied) continue;
    const Tensor own = own_gradient(bucket, which);
    engine_.wait(engine_.all_reduce(groups_.ends, start_of(own), nullptr, own.elements(),
                                    comm::SumOrder::library, "trireme/parallel/reduce_tied"));
  }
}

Tensor GradientReducer::level(int number, int bucket) const {
  const Tensor& flat =
      number == 0 ? sums_[now_].lowest : levels_[static_cast<std::size_t>(number) - 1];
  return flat.rows(bucket_at(bucket).begin, bucket_at(bucket).end);
}

Tensor GradientReducer::own_gradient(int bucket, std::size_t which) const {
  const Shard::Bucket& shard = store_.owned().buckets()[static_cast<std::size_t>(bucket)];
  return sums_[which].reduced.rows(shard.begin, shard.end);
}

}  // namespace trireme::parallel
