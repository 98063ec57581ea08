// SPDX-License-Identifier: Apache-2.0
//
// Master weights, working weights, and the gathers between them.
//
// In a step: acquire() before each forward and backward of a block; after the update
// start_gather(). Resident weights: start_gather() gathers all buckets, and acquire() waits for the
// one it needs. Weights by bucket: acquire() loads the buckets of this block and of the next one
// into the two buffers, and start_gather() discards them.
//
// Called by train (forward and backward of a chunk, end of a step) and by optim.

#include "trireme/parallel/parameter_store.hpp"

#include <algorithm>
#include <string_view>

#include "trireme/base/check.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::parallel {
namespace {

constexpr std::string_view gather_label = "trireme/parallel/gather_weights";
/// Elements of the host buffer for initial values of device memory (64 MiB).
constexpr std::int64_t staging_elements = std::int64_t{16} << 20;

/// Returns a tensor of `type` and `shape` at byte `offset` of `bytes`.
Tensor view(const Tensor& bytes, std::int64_t offset, DType type, const Shape& shape) {
  return {bytes.data == nullptr ? nullptr : static_cast<std::byte*>(bytes.data) + offset, type,
          bytes.device, shape};
}

/// Returns the sharding with kind none for a group of one.
Sharding effective_sharding(Sharding sharding) {
  if (sharding.size() == 1) sharding.kind = ShardKind::none;
  return sharding;
}

}  // namespace

ParameterStore::ParameterStore(const ParameterList& list, const FlatLayout& layout,
                               const Sharding& sharding, const StateMemory& parameters,
                               Arena& gradients)
    : list_(&list),
      layout_(&layout),
      sharding_(effective_sharding(sharding)),
      owned_(list, layout, sharding_.kind == ShardKind::none ? 0 : sharding_.rank(),
             sharding_.kind == ShardKind::none ? 1 : sharding_.size(),
             sharding_.max_window_elements),
      master_(owned_, parameters),
      resident_(sharding_.kind != ShardKind::parameters && parameters.host == nullptr),
      bucket_gradients_(layout.buckets().size()),
      bucket_working_(layout.buckets().size()),
      gathers_(layout.buckets().size(), 0) {
  TRIREME_EXPECT(sharding_.kind == ShardKind::none || sharding_.engine != nullptr);
  const auto take = [](Arena& arena, DType type, std::int64_t elements) {
    return arena.allocate(type, {elements});
  };
  // 1. Allocate the reduced gradient and resident working weights.
  gradient_ = take(gradients, DType::float32, owned_.trained_elements());
  place_frozen_gradients(gradients);
  const bool whole = sharding_.kind == ShardKind::none;
  if (resident_ && !(whole && compute_type() == DType::float32))
    working_ = take(parameters.device, DType::uint8, layout.working_bytes());

  // 2. Set the views by bucket, or allocate the buffers of tied buckets.
  std::int64_t max_bytes = 0, max_frozen_bytes = 0;
  for (std::size_t index = 0; index < layout.buckets().size(); ++index) {
    const FlatLayout::Bucket& bucket = layout.buckets()[index];
    if (whole && !bucket.frozen)
      bucket_gradients_[index] = gradient_.rows(bucket.begin, bucket.end);
    if (resident_) {
      bucket_working_[index] = view(working_.defined() ? working_ : master_.flat(),
                                    bucket.working_begin, DType::uint8, {bucket.working_bytes()});
    } else if (bucket.tied) {
      tied_buffers_.push_back(
          {.bytes = take(parameters.device, DType::uint8, bucket.working_bytes())});
      tied_buckets_.push_back(static_cast<int>(index));
    } else {
      std::int64_t& largest = bucket.frozen ? max_frozen_bytes : max_bytes;
      largest = std::max(largest, bucket.working_bytes());
    }
  }
  // 3. Allocate the two buffers for all other buckets.
  if (resident_) return;
  for (WorkingBuffer& buffer : trained_turns_.buffers)
    buffer.bytes = take(parameters.device, DType::uint8, max_bytes);
  for (WorkingBuffer& buffer : frozen_turns_.buffers)
    if (max_frozen_bytes > 0)
      buffer.bytes = take(parameters.device, DType::uint8, max_frozen_bytes);
}

/// Allocates the memory that gradient() returns for frozen vectors.
void ParameterStore::place_frozen_gradients(Arena& gradients) {
  std::int64_t elements = 0;
  frozen_offsets_.assign(list_->entries().size(), -1);
  for (std::size_t index = 0; index < frozen_offsets_.size(); ++index) {
    const ParameterList::Entry& entry = list_->entries()[index];
    if (!entry.spec.frozen || entry.spec.shape.rank() > 1) continue;
    frozen_offsets_[index] = elements;
    elements += entry.partition.elements();
  }
  if (elements > 0) frozen_gradients_ = gradients.allocate(DType::float32, {elements});
}

void ParameterStore::initialize(ops::Context& context, std::uint64_t seed) {
  const bool in_place = in_host_memory(flat_master().device);
  std::vector<float> staging;
  // State in host memory may still have copies in flight.
  synchronize(context.stream());
  for (std::size_t index = 0; index < list_->entries().size() && !context.meta(); ++index) {
    const auto& [spec, block, part] = list_->entries()[index];
    const ParameterShard::OwnedRows& mine = owned_.owned_rows({static_cast<std::int32_t>(index)});
    const std::int64_t step =
        in_place ? part.rows()
                 : std::max<std::int64_t>(
                       1, staging_elements / std::max<std::int64_t>(1, part.row_elements()));
    for (std::int64_t begin = mine.row_begin; begin < mine.row_end; begin += step) {
      const std::int64_t end = std::min(mine.row_end, begin + step),
                         elements = (end - begin) * part.row_elements();
      float* destination =
          flat_master().as<float>() + mine.offset + (begin - mine.row_begin) * part.row_elements();
      if (!in_place) staging.resize(std::max(staging.size(), static_cast<std::size_t>(elements)));
      float* rows = in_place ? destination : staging.data();
      initialize_rows(spec, part, seed, begin, end, rows);
      if (!in_place)
        copy_bytes(context.stream(), destination, rows,
                   static_cast<std::size_t>(elements) * sizeof(float));
    }
  }
  refresh_working(context);
}

void ParameterStore::refresh_working(ops::Context& context) {
  for (int bucket = 0; working_.defined() && bucket < static_cast<int>(bucket_working_.size());
       ++bucket) {
    // Until then the gather owns the memory.
    wait_for_bucket(bucket);
    write_own_working(context, bucket);
  }
  // 1. Frozen weights, of which start_gather() keeps the copies.
  if (!resident_) {
    for (WorkingBuffer& buffer : frozen_turns_.buffers) release(buffer);
    for (WorkingBuffer& buffer : tied_buffers_) release(buffer);
  } else if (sharding_.kind != ShardKind::none) {
    for (std::size_t bucket = bucket_working_.size(); bucket-- > layout_->trained_buckets();)
      gather_bucket(static_cast<int>(bucket));
  }
  // 2. All others.
  start_gather(context);
  weights_changed();
  frozen_version_ = version_;
}

void ParameterStore::start_gather(ops::Context&) {
  if (!resident_) {
    for (WorkingBuffer& buffer : trained_turns_.buffers) release(buffer);
    for (WorkingBuffer& buffer : tied_buffers_) {
      if (buffer.bucket >= 0 && !layout_->buckets()[static_cast<std::size_t>(buffer.bucket)].frozen)
        release(buffer);
    }
  } else if (sharding_.kind != ShardKind::none) {
    // Flat order is backward order, so forward needs the last bucket first. Tied tensors are last.
    for (std::size_t bucket = layout_->trained_buckets(); bucket-- > 0;)
      gather_bucket(static_cast<int>(bucket));
  }
}

void ParameterStore::acquire(ops::Context& context, int block, int next_block) {
  // 1. Poll gathers, and sums that the previous step left under way.
  if (sharding_.engine != nullptr) sharding_.engine->progress();
  if (resident_ && sharding_.kind == ShardKind::none) return;
  const int bucket = layout_->bucket_of(block), frozen_bucket = layout_->frozen_bucket_of(block);
  // 2. Weights by bucket: load this block's buckets, and start to load the next ones into the other
  //    buffers.
  if (!resident_) {
    for (std::size_t i = 0; i < tied_buffers_.size(); ++i) {
      if (tied_buffers_[i].bucket < 0) load(context, tied_buffers_[i], tied_buckets_[i]);
    }
    load_block(context, trained_turns_, bucket,
               next_block < 0 ? -1 : layout_->bucket_of(next_block));
    load_block(context, frozen_turns_, frozen_bucket,
               next_block < 0 ? -1 : layout_->frozen_bucket_of(next_block));
  }
  // 3. Wait for the gathers of this block and of tied tensors.
  if (bucket >= 0) wait_for_bucket(bucket);
  if (frozen_bucket >= 0) wait_for_bucket(frozen_bucket);
  for (std::size_t index = 0; index < layout_->buckets().size(); ++index) {
    if (layout_->buckets()[index].tied) wait_for_bucket(static_cast<int>(index));
  }
}

/// Loads the bucket of a block and starts to load the next one (-1: none).
void ParameterStore::load_block(ops::Context& context, TurnBuffers& pair, int bucket,
                                int next_bucket) {
  if (bucket >= 0) pair.current = load_in_turn(context, pair, bucket);
  if (next_bucket >= 0) load_in_turn(context, pair, next_bucket);
}

/// Returns the index of the buffer with the bucket; loads it into the buffer that is not read now
/// if necessary.
int ParameterStore::load_in_turn(ops::Context& context, TurnBuffers& pair, int bucket) {
  for (const int turn : {0, 1}) {
    if (pair.buffers[turn].bucket == bucket) return turn;
  }
  load(context, pair.buffers[1 - pair.current], bucket);
  return 1 - pair.current;
}

/// Writes this rank's part of a bucket to the buffer and starts the gather of the others.
void ParameterStore::load(ops::Context& context, WorkingBuffer& buffer, int bucket) {
  release(buffer);
  const auto index = static_cast<std::size_t>(bucket);
  buffer.bucket = bucket;
  bucket_working_[index] =
      view(buffer.bytes, 0, DType::uint8, {layout_->buckets()[index].working_bytes()});
  write_own_working(context, bucket);
  if (sharding_.kind != ShardKind::none) gather_bucket(bucket);
}

/// Empties a buffer, after its gather is done.
void ParameterStore::release(WorkingBuffer& buffer) {
  if (buffer.bucket < 0) return;
  wait_for_bucket(buffer.bucket);
  bucket_working_[static_cast<std::size_t>(buffer.bucket)] = {};
  buffer.bucket = -1;
}

/// Converts this rank's part of a bucket from master to working weights.
void ParameterStore::write_own_working(ops::Context& context, int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  const ParameterShard::Bucket& shard = owned_.buckets()[index];
  for (std::size_t part = shard.window_begin; part < shard.window_end; ++part) {
    const ParameterShard::Window& window = owned_.windows()[part];
    const Tensor master = master_.open(context, window);
    casts_.clear();
    for (std::size_t number = std::max(shard.range_begin, window.range_begin);
         number < std::min(shard.range_end, window.range_end); ++number) {
      const ParameterShard::TensorRange& range = owned_.tensor_ranges()[number];
      casts_.push_back({.x = master.rows(range.offset, range.offset + range.elements),
                        .y = view(bucket_working_[index],
                                  range.working_begin - layout_->buckets()[index].working_begin,
                                  range.type, {range.elements})});
    }
    ops::cast_tensors(context, casts_);
  }
}

void ParameterStore::gather_bucket(int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  gathers_[index] = sharding_.engine->all_gather(
      sharding_.data, static_cast<std::byte*>(bucket_working_[index].data),
      owned_.buckets()[index].working_bounds, {gather_label, {"bucket", bucket}});
}

void ParameterStore::wait_for_bucket(int bucket) {
  comm::Engine::Request& gather = gathers_[static_cast<std::size_t>(bucket)];
  if (gather != 0) sharding_.engine->wait(gather);
  gather = 0;
}

Tensor ParameterStore::weight(ParameterId first, int count) const {
  const FlatLayout::FlatTensor& tensor = layout_->tensor(first);
  const auto bucket = static_cast<std::size_t>(tensor.bucket);
  // Fails if acquire() was not called for the block.
  TRIREME_EXPECT(bucket_working_[bucket].defined() && gathers_[bucket] == 0);
  return view(bucket_working_[bucket],
              tensor.working_begin - layout_->buckets()[bucket].working_begin, tensor.type,
              joined_shape(first, count));
}

Tensor ParameterStore::gradient(ParameterId first, int count) const {
  if (!needs_gradient(first)) {
    const std::int64_t offset = frozen_offsets_[static_cast<std::size_t>(first.index)];
    TRIREME_EXPECT(offset >= 0);
    return view(frozen_gradients_, offset * size_of(DType::float32), DType::float32,
                joined_shape(first, count));
  }
  const FlatLayout::FlatTensor& tensor = layout_->tensor(first);
  const auto bucket = static_cast<std::size_t>(tensor.bucket);
  TRIREME_EXPECT(bucket_gradients_[bucket].defined());
  return view(bucket_gradients_[bucket],
              (tensor.offset - layout_->buckets()[bucket].begin) * size_of(DType::float32),
              DType::float32, joined_shape(first, count));
}

Tensor ParameterStore::master(ParameterId id) const {
  const ParameterShard::OwnedRows& mine = owned_.owned_rows(id);
  Shape shape = list_->partition(id).memory_shape();
  shape[0] =
      shape.rank() > 1 ? mine.row_end - mine.row_begin : (mine.row_end - mine.row_begin) * shape[0];
  return view(flat_master(), mine.offset * size_of(DType::float32), DType::float32, shape);
}

Shape ParameterStore::joined_shape(ParameterId first, int count) const {
  const parallel::TensorPartition& part = list_->partition(first);
  if (count == 1) return part.memory_shape();
  const bool vector = part.shape().rank() == 1;
  Shape shape{0};
  if (!vector) shape.push_back(part.row_elements());
  for (std::int32_t index = first.index; index < first.index + count; ++index) {
    [[maybe_unused]] const bool fits =
        index == first.index ||
        ((*list_)[{index}].joined && layout_->tensor({index}).type == layout_->tensor(first).type);
    TRIREME_EXPECT(fits && list_->partition({index}).shape().rank() == part.shape().rank());
    TRIREME_EXPECT(vector || list_->partition({index}).row_elements() == part.row_elements());
    shape[0] += vector ? list_->partition({index}).elements() : list_->partition({index}).rows();
  }
  return shape;
}

}  // namespace trireme::parallel
