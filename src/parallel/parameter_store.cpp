#include "trireme/parallel/parameter_store.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::parallel {
namespace {

/// Of initial values that are on their way from the host to a device.
constexpr std::int64_t staging_elements = std::int64_t{16} << 20;

/// `shape` of `type` at `offset` bytes from the start of `bytes`.
Tensor view(const Tensor& bytes, std::int64_t offset, DType type, const Shape& shape) {
  return {bytes.data == nullptr ? nullptr : static_cast<std::byte*>(bytes.data) + offset, type,
          bytes.device, shape};
}

Sharding with_effect(Sharding sharding) {
  if (sharding.size() == 1) sharding.kind = ShardKind::none;
  return sharding;
}

}  // namespace

ParameterStore::ParameterStore(const ParameterList& list, const FlatLayout& layout,
                               const Sharding& sharding, const StateMemory& parameters,
                               Arena& gradients)
    : list_(&list),
      layout_(&layout),
      sharding_(with_effect(sharding)),
      owned_(list, layout, sharding_.kind == ShardKind::none ? 0 : sharding_.rank(),
             sharding_.kind == ShardKind::none ? 1 : sharding_.size(), sharding_.window_elements),
      master_(owned_, parameters),
      resident_(sharding_.kind != ShardKind::parameters && parameters.host == nullptr),
      bucket_gradients_(layout.buckets().size()),
      bucket_working_(layout.buckets().size()),
      arriving_(layout.buckets().size(), 0) {
  TRIREME_EXPECT(sharding_.kind == ShardKind::none || sharding_.engine != nullptr);
  const auto take = [](Arena& arena, DType type, std::int64_t elements) {
    return arena.allocate(type, {elements});
  };
  gradient_ = take(gradients, DType::float32, owned_.elements());
  const bool whole = sharding_.kind == ShardKind::none;
  if (resident_ && !(whole && compute_type() == DType::float32))
    working_ = take(parameters.device, DType::uint8, layout.working_bytes());

  std::int64_t longest = 0;
  for (std::size_t index = 0; index < layout.buckets().size(); ++index) {
    const FlatLayout::Bucket& bucket = layout.buckets()[index];
    if (whole) bucket_gradients_[index] = gradient_.rows(bucket.begin, bucket.end);
    if (resident_) {
      bucket_working_[index] = view(working_.defined() ? working_ : master_.flat(),
                                    bucket.working_begin, DType::uint8, {bucket.working_bytes()});
    } else if (bucket.tied) {
      tied_.push_back({.bytes = take(parameters.device, DType::uint8, bucket.working_bytes())});
    } else {
      longest = std::max(longest, bucket.working_bytes());
    }
  }
  if (resident_) return;
  for (Held& held : turns_) held.bytes = take(parameters.device, DType::uint8, longest);
}

void ParameterStore::initialize(ops::Context& context, std::uint64_t seed) {
  const bool in_place = in_host_memory(flat_master().device);
  std::vector<float> staging;
  synchronize(context.stream());  // state in host memory may be on its way there
  for (std::size_t index = 0; index < list_->entries().size() && !context.meta(); ++index) {
    const auto& [spec, block, part] = list_->entries()[index];
    const Shard::Part& mine = owned_.part({static_cast<std::int32_t>(index)});
    const std::int64_t step =
        in_place ? part.rows()
                 : std::max<std::int64_t>(
                       1, staging_elements / std::max<std::int64_t>(1, part.row_elements()));
    for (std::int64_t begin = mine.row_begin; begin < mine.row_end; begin += step) {
      const std::int64_t end = std::min(mine.row_end, begin + step),
                         elements = (end - begin) * part.row_elements();
      float* home =
          flat_master().as<float>() + mine.offset + (begin - mine.row_begin) * part.row_elements();
      if (!in_place) staging.resize(std::max(staging.size(), static_cast<std::size_t>(elements)));
      float* rows = in_place ? home : staging.data();
      initialize_rows(spec, part, seed, begin, end, rows);
      if (!in_place)
        copy_bytes(context.stream(), home, rows,
                   static_cast<std::size_t>(elements) * sizeof(float));
    }
  }
  refresh_working(context);
}

void ParameterStore::refresh_working(ops::Context& context) {
  for (int bucket = 0; working_.defined() && bucket < static_cast<int>(bucket_working_.size());
       ++bucket) {
    await(bucket);  // its memory is the gather's until then
    make_own_working(context, bucket);
  }
  publish(context);
  weights_changed();
}

void ParameterStore::publish(ops::Context&) {
  if (!resident_) {
    for (Held& held : turns_) forget(held);
    for (Held& held : tied_) forget(held);
  } else if (sharding_.kind != ShardKind::none) {
    // Flat order is backward's: the last bucket is the one that forward needs first, tied tensors
    // before all.
    for (std::size_t bucket = bucket_working_.size(); bucket-- > 0;)
      gather(static_cast<int>(bucket));
  }
}

void ParameterStore::need(ops::Context& context, int block, int next_block) {
  if (sharding_.engine != nullptr)
    sharding_.engine->progress();  // of gathers, and of sums that the step before left under way
  if (resident_ && sharding_.kind == ShardKind::none) return;
  const int bucket = layout_->bucket_of(block),
            next_bucket = next_block < 0 ? -1 : layout_->bucket_of(next_block);
  if (!resident_) {
    const std::size_t ordinary = bucket_working_.size() - tied_.size();
    for (std::size_t i = 0; i < tied_.size(); ++i) {
      if (tied_[i].bucket < 0) hold(context, tied_[i], static_cast<int>(ordinary + i));
    }
    if (bucket >= 0) turn_ = hold_in_turn(context, bucket);
    if (next_bucket >= 0) hold_in_turn(context, next_bucket);  // beside the one that is read now
  }
  if (bucket >= 0) await(bucket);
  for (std::size_t index = 0; index < layout_->buckets().size(); ++index) {
    if (layout_->buckets()[index].tied) await(static_cast<int>(index));
  }
}

/// The buffer of turns_ where the bucket is, or comes to from now on.
int ParameterStore::hold_in_turn(ops::Context& context, int bucket) {
  for (const int turn : {0, 1}) {
    if (turns_[turn].bucket == bucket) return turn;
  }
  hold(context, turns_[1 - turn_], bucket);
  return 1 - turn_;
}

void ParameterStore::hold(ops::Context& context, Held& held, int bucket) {
  forget(held);
  const auto index = static_cast<std::size_t>(bucket);
  held.bucket = bucket;
  bucket_working_[index] =
      view(held.bytes, 0, DType::uint8, {layout_->buckets()[index].working_bytes()});
  make_own_working(context, bucket);
  if (sharding_.kind != ShardKind::none) gather(bucket);
}

void ParameterStore::forget(Held& held) {
  if (held.bucket < 0) return;
  await(held.bucket);
  bucket_working_[static_cast<std::size_t>(held.bucket)] = {};
  held.bucket = -1;
}

/// Writes what this rank owns of a bucket's working weights from the master.
void ParameterStore::make_own_working(ops::Context& context, int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  const Shard::Bucket& shard = owned_.buckets()[index];
  for (std::size_t part = shard.window_begin; part < shard.window_end; ++part) {
    const Shard::Window& window = owned_.windows()[part];
    const Tensor master = master_.open(context, window);
    for (std::size_t number = std::max(shard.run_begin, window.run_begin);
         number < std::min(shard.run_end, window.run_end); ++number) {
      const Shard::Run& run = owned_.runs()[number];
      ops::cast(context, master.rows(run.offset, run.offset + run.elements),
                view(bucket_working_[index], run.working - layout_->buckets()[index].working_begin,
                     run.type, {run.elements}));
    }
  }
}

void ParameterStore::gather(int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  arriving_[index] = sharding_.engine->all_gather(
      sharding_.data, static_cast<std::byte*>(bucket_working_[index].data),
      owned_.buckets()[index].working_bounds, "trireme/parallel/gather_weights");
}

void ParameterStore::await(int bucket) {
  comm::Engine::Request& arriving = arriving_[static_cast<std::size_t>(bucket)];
  if (arriving != 0) sharding_.engine->wait(arriving);
  arriving = 0;
}

Tensor ParameterStore::weight(ParameterId first, int count) const {
  const FlatLayout::Slot& slot = layout_->slot(first);
  const auto bucket = static_cast<std::size_t>(slot.bucket);
  TRIREME_EXPECT(bucket_working_[bucket].defined() && arriving_[bucket] == 0);  // need() was called
  return view(bucket_working_[bucket], slot.working - layout_->buckets()[bucket].working_begin,
              slot.type, joined_shape(first, count));
}

Tensor ParameterStore::gradient(ParameterId first, int count) const {
  const FlatLayout::Slot& slot = layout_->slot(first);
  const auto bucket = static_cast<std::size_t>(slot.bucket);
  TRIREME_EXPECT(bucket_gradients_[bucket].defined());
  return view(bucket_gradients_[bucket],
              (slot.offset - layout_->buckets()[bucket].begin) * size_of(DType::float32),
              DType::float32, joined_shape(first, count));
}

Tensor ParameterStore::master(ParameterId id) const {
  const Shard::Part& mine = owned_.part(id);
  Shape shape = list_->part(id).memory_shape();
  shape[0] =
      shape.rank() > 1 ? mine.row_end - mine.row_begin : (mine.row_end - mine.row_begin) * shape[0];
  return view(flat_master(), mine.offset * size_of(DType::float32), DType::float32, shape);
}

Shape ParameterStore::joined_shape(ParameterId first, int count) const {
  const parallel::Part& part = list_->part(first);
  if (count == 1) return part.memory_shape();
  const bool vector = part.shape().rank() == 1;
  Shape shape{0};
  if (!vector) shape.push_back(part.row_elements());
  for (std::int32_t index = first.index; index < first.index + count; ++index) {
    [[maybe_unused]] const bool fits =
        index == first.index ||
        ((*list_)[{index}].joined && layout_->slot({index}).type == layout_->slot(first).type);
    TRIREME_EXPECT(fits && list_->part({index}).shape().rank() == part.shape().rank());
    TRIREME_EXPECT(vector || list_->part({index}).row_elements() == part.row_elements());
    shape[0] += vector ? list_->part({index}).elements() : list_->part({index}).rows();
  }
  return shape;
}

}  // namespace trireme::parallel
