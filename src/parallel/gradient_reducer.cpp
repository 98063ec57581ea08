#include "trireme/parallel/gradient_reducer.hpp"

#include <cstring>

#include "trireme/base/check.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/parallel/tree.hpp"

namespace trireme::parallel {
namespace {

/// One more flat buffer; the gaps between tensors start, and stay, 0.
Tensor take_buffer(Arena& gradients, const Tensor& like) {
  const Tensor buffer = gradients.allocate(like.dtype, like.shape);
  if (buffer.data != nullptr) std::memset(buffer.data, 0, static_cast<std::size_t>(buffer.bytes()));
  return buffer;
}

Tensor part(const Tensor& flat, const FlatLayout::Bucket& bucket) { return flat.rows(bucket.begin, bucket.end); }

}  // namespace

GradientReducer::GradientReducer(ParameterStore& store, const comm::Communicator& data_group, comm::Engine& engine, const Options& options, Arena& gradients)
    : store_(store), group_(data_group), engine_(engine), options_(options) {
  TRIREME_EXPECT(options.micro_batches > 0);
  levels_.push_back(store.flat_gradient());
  tickets_.reserve(store.layout().buckets().size());
  if (!options.deterministic) return;
  for (int level = 1; level < TreeWalk(options.micro_batches).depth(); ++level) levels_.push_back(take_buffer(gradients, levels_[0]));
  if (group_.size() > 1) exchange_ = take_buffer(gradients, levels_[0]);
}

void GradientReducer::begin_step() {
  tickets_.clear();
  top_ = buckets_done_ = 0;
}

ops::Write GradientReducer::begin_micro_batch(std::int64_t micro_batch) {
  TRIREME_EXPECT(0 <= micro_batch && micro_batch < options_.micro_batches);
  micro_batch_ = micro_batch;
  store_.set_gradient(levels_[static_cast<std::size_t>(top_)]);
  return options_.deterministic || micro_batch == 0 ? ops::Write::assign : ops::Write::add;
}

void GradientReducer::block_done(ops::Context& context, int block) {
  engine_.progress();
  const int merges = options_.deterministic ? TreeWalk(options_.micro_batches).merges(micro_batch_) : 0;
  if (micro_batch_ + 1 < options_.micro_batches) {
    if (!options_.deterministic || block != 0) return;
    merge_levels(context, {0, store_.layout().elements(), 0}, merges);
    top_ += 1 - merges;
    return;
  }
  const std::vector<FlatLayout::Bucket>& buckets = store_.layout().buckets();
  for (; buckets_done_ < static_cast<int>(buckets.size()); ++buckets_done_) {
    const FlatLayout::Bucket& bucket = buckets[static_cast<std::size_t>(buckets_done_)];
    if (bucket.ready_block < block) return;
    merge_levels(context, bucket, merges);
    const auto start = [&](const Tensor& flat) { return flat.data == nullptr ? nullptr : flat.as<float>() + bucket.begin; };
    tickets_.push_back(engine_.all_reduce(group_, start(levels_[0]), start(exchange_), bucket.end - bucket.begin,
                                          options_.deterministic ? comm::SumOrder::tree : comm::SumOrder::library, "trireme/parallel/reduce_bucket"));
  }
}

double GradientReducer::finish(ops::Context&) {
  TRIREME_EXPECT(micro_batch_ + 1 == options_.micro_batches && buckets_done_ == static_cast<int>(store_.layout().buckets().size()));
  const double before = engine_.waited_seconds();
  for (const comm::Engine::Ticket ticket : tickets_) engine_.wait(ticket);
  store_.set_gradient(levels_[0]);
  return engine_.waited_seconds() - before;
}

void GradientReducer::merge_levels(ops::Context& context, const FlatLayout::Bucket& bucket, int merges) {
  for (int merge = 0; merge < merges; ++merge) {
    const auto upper = static_cast<std::size_t>(top_ - merge);
    ops::add(context, part(levels_[upper], bucket), part(levels_[upper - 1], bucket));
  }
}

}  // namespace trireme::parallel
