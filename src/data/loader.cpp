// SPDX-License-Identifier: Apache-2.0
//
// The loader: threads that read micro-batches ahead of their use.
//
// Micro-batch k of a pass is read into buffer k mod buffers, by the thread that took task k. Tasks
// are taken in order, and only as far as buffers are free. So the step and the part of the step
// follow from the task's number.
//
// Timeline with three buffers (prefetch = 2) and two threads:
//
//   thread 1   read 0 -> A | read 2 -> C          | read 3 -> A (A is free)  | ...
//   thread 2   read 1 -> B        | wait: no free buffer          | read 4 -> B
//   caller     next(): wait | use A            | next() frees A: use B | next() frees B: use C
//
// While the disk is slow, a thread first asks the system for the samples of later micro-batches:
// many requests at once are faster than one after the other, and samples that are close together
// become one request. A page cache that has the samples makes this useless, so it stops while
// reading is fast.
//
// A buffer is free once the caller asks for the next micro-batch and the event `copy_done` shows
// that the device has read it. One mutex protects the counters; reading happens outside of it.
#include "trireme/data/loader.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "data/shards/block_comparison.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/targets/move_map.hpp"
#include "trireme/device/profile_range.hpp"

namespace trireme::data {
namespace {

// Samples that the system is asked for before they are read: at least this number, and these bytes
// unless the shards are so small that many of them would be opened. More at once are hardly faster.
constexpr std::int64_t min_samples_ahead = 64, min_bytes_ahead = std::int64_t{16} << 20;
// Reading is slow, so that the samples cannot be in memory, above this time.
constexpr double seconds_per_sample_in_memory = 2e-6, seconds_per_byte_in_memory = 1 / 1.5e9;

// Rounded up to cache lines, so that no two parts share one.
std::int64_t round_up_to_cache_line(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Returns how many micro-batches after the one that is read the system is asked for.
std::int64_t micro_batches_ahead(const Dataset& dataset, std::int64_t micro) {
  const std::int64_t samples_per_shard =
      dataset.info().samples / std::ssize(dataset.info().shard_samples);
  const std::int64_t samples = std::max(
      min_samples_ahead, std::min(min_bytes_ahead / dataset.stored_bytes(), samples_per_shard));
  return (samples + micro - 1) / micro;
}

}  // namespace

struct Loader::State {
  /// One buffer: a micro-batch and the arrays that its pointers refer to.
  struct BatchBuffer {
    MicroBatch batch;
    ops::ImageTransform* transforms = nullptr;
    float* label_weights = nullptr;  // null unless labels are requested and mixed
    std::int64_t* samples = nullptr;
    std::uint64_t* keys = nullptr;
    Event copy_done;
    std::int64_t loaded_index = -1;  // number of the micro-batch it holds; -1: none
    std::exception_ptr error;
  };
  /// Memory of one row of a buffer; null: not requested.
  struct RowPointers {
    std::byte* inputs = nullptr;
    std::byte* labels = nullptr;
  };
  /// The task to read one micro-batch.
  struct ReadTask {
    std::int64_t index = 0;          // number of the micro-batch in the pass
    std::int64_t index_in_step = 0;  // training: number of the micro-batch in the step
    Cursor step;                     // training: start of the step
  };
  /// The sample in a row of a micro-batch; -1: padding.
  struct SampleOfRow {
    std::int64_t sample = -1, epoch = 0;
  };

  State(const Dataset& dataset_in, const LoaderOptions& options_in);
  ~State();
  void allocate_buffers();
  void stop_readers();
  void start(Cursor cursor);
  const MicroBatch& next(std::exception_ptr* error);
  void wait_for_copy();

  ReadTask after(const ReadTask& task) const;
  SampleOfRow sample_of_row(const ReadTask& task, std::int64_t row) const;
  std::vector<std::int64_t> memory_of_samples_ahead() const {
    std::vector<std::int64_t> samples;
    samples.reserve(static_cast<std::size_t>(ahead * options.micro));
    return samples;
  }
  void read_ahead(ReadTask task, std::int64_t last, std::vector<std::int64_t>& samples) const;
  void record_time(double seconds);
  void run_reader(std::vector<std::int64_t> samples_ahead);
  void fill(const ReadTask& task, BatchBuffer& buffer, ReaderState& reader);
  void fill_row(std::int64_t row, std::int64_t sample, std::int64_t epoch, BatchBuffer& buffer,
                ReaderState& reader);
  void mix_pairs(BatchBuffer& buffer) const;
  void clear_row(std::int64_t row, BatchBuffer& buffer) const;
  RowPointers pointers_of_row(std::int64_t row, const BatchBuffer& buffer) const;
  BatchBuffer& buffer_of(std::int64_t index) {
    return buffers[static_cast<std::size_t>(index) % buffers.size()];
  }

  const Dataset& dataset;
  const LoaderOptions options;
  std::int64_t micro_batches_per_step = 1;  // micro-batches per step
  std::int64_t micro_batches_per_pass = 0;  // evaluation: micro-batches per pass
  Allocation memory;
  std::vector<BatchBuffer> buffers;

  std::mutex mutex;
  std::condition_variable task_available, task_finished;
  bool ending = false, paused = true;
  int active_readers = 0;
  std::int64_t pass_length = 0;  // micro-batches per pass; training: no limit
  std::int64_t returned = 0;     // returned to the caller, who still uses the last one
  std::int64_t released = 0;     // micro-batches below this number have free buffers
  ReadTask next_task;
  ReadTask next_ahead;  // the next micro-batch that the system is asked for
  bool reading_is_slow = true;
  std::int64_t ahead = 0;                     // micro-batches that the system is asked for
  std::optional<BlockComparison> comparison;  // data.verify
  std::vector<std::thread> readers;
};

Loader::State::State(const Dataset& dataset_in, const LoaderOptions& options_in)
    : dataset(dataset_in), options(options_in) {
  const std::int64_t samples = options.order.samples, micro = options.micro;
  TRIREME_EXPECT(samples > 0 && samples <= dataset.info().samples);
  TRIREME_EXPECT(options.order.subset_of == 0 ? samples == dataset.info().samples
                                              : options.order.subset_of == dataset.info().samples);
  TRIREME_EXPECT(micro >= 1 && options.data_size >= 1 && options.data_rank >= 0 &&
                 options.data_rank < options.data_size);
  TRIREME_EXPECT(options.interleaved_ranks >= 1 &&
                 options.data_size % options.interleaved_ranks == 0);
  const std::int64_t samples_per_round = micro * options.data_size;
  if (options.training) {
    const std::int64_t global = options.batching.global_batch;
    TRIREME_EXPECT(options.batching.samples <= samples);
    TRIREME_EXPECT(global > 0 && global % samples_per_round == 0);
    TRIREME_EXPECT(!options.augmentation.mixing.is_on() || micro % 2 == 0);
    TRIREME_EXPECT(!options.batching.drop_last || global <= samples);
    micro_batches_per_step = global / samples_per_round;
  } else {
    micro_batches_per_pass = (samples + samples_per_round - 1) / samples_per_round;
  }
  ahead = micro_batches_ahead(dataset, micro);
  if (options.training && options.verify > 0)
    comparison.emplace(dataset, options.verify, options.order.seed);
  allocate_buffers();
  try {
    for (int i = 0; i < std::max(options.workers, 1); ++i)
      readers.emplace_back([this, samples = memory_of_samples_ahead()]() mutable {
        run_reader(std::move(samples));
      });
  } catch (const std::system_error& error) {
    stop_readers();
    throw Failure(
        fmt::format("data.workers = {}: {}", options.workers, thread_error_text(error.what())));
  }
}

void Loader::State::allocate_buffers() {
  const std::int64_t micro = options.micro;
  const SampleInfo& sample = dataset.sample();
  const auto rows_of = [&](const Shape& row) {
    Shape rows{micro};
    for (const std::int64_t extent : row) rows.push_back(extent);
    return rows;
  };
  const Shape labels = rows_of(sample.labels);
  const std::int64_t input_bytes =
      options.inputs ? round_up_to_cache_line(micro * sample.input_bytes()) : 0;
  const std::int64_t label_bytes =
      options.labels ? round_up_to_cache_line(labels.elements() * size_of(sample.label_type)) : 0;
  const std::int64_t transform_bytes =
      round_up_to_cache_line(micro * static_cast<std::int64_t>(sizeof(ops::ImageTransform)));
  const std::int64_t index_bytes =
      round_up_to_cache_line(micro * static_cast<std::int64_t>(sizeof(std::int64_t)));
  const std::int64_t weight_bytes =
      options.training && options.labels && options.augmentation.mixing.is_on()
          ? round_up_to_cache_line(micro * static_cast<std::int64_t>(sizeof(float)))
          : 0;
  const std::int64_t buffer_bytes =
      input_bytes + label_bytes + transform_bytes + weight_bytes + 2 * index_bytes;
  // The caller uses one more buffer.
  buffers.resize(static_cast<std::size_t>(std::max(options.prefetch, 1)) + 1);
  memory = Allocation({DeviceKind::cpu, 0}, buffers.size() * static_cast<std::size_t>(buffer_bytes),
                      options.memory_name,
                      in_host_memory(options.device.kind) ? Pages::pageable : Pages::pinned);
  std::byte* at = memory.data();
  const auto take = [&at](std::int64_t bytes) { return std::exchange(at, at + bytes); };
  for (BatchBuffer& buffer : buffers) {
    buffer.copy_done = Event(options.device);
    buffer.batch.copy_done = &buffer.copy_done;
    if (options.inputs)
      buffer.batch.inputs = {take(input_bytes), sample.dtype, DeviceKind::cpu,
                             rows_of(sample.input)};
    if (options.labels)
      buffer.batch.labels = {take(label_bytes), sample.label_type, DeviceKind::cpu, labels};
    buffer.batch.transforms = buffer.transforms =
        reinterpret_cast<ops::ImageTransform*>(take(transform_bytes));
    if (weight_bytes > 0)
      buffer.batch.label_weights = buffer.label_weights =
          reinterpret_cast<float*>(take(weight_bytes));
    buffer.batch.samples = buffer.samples = reinterpret_cast<std::int64_t*>(take(index_bytes));
    buffer.batch.sample_keys = buffer.keys = reinterpret_cast<std::uint64_t*>(take(index_bytes));
  }
}

Loader::State::~State() { stop_readers(); }

void Loader::State::stop_readers() {
  {
    const std::lock_guard lock(mutex);
    ending = true;
  }
  task_available.notify_all();
  for (std::thread& reader : readers) reader.join();
}

/// Waits until the device has copied the caller's micro-batch. Earlier ones were waited for when
/// the next one was returned.
void Loader::State::wait_for_copy() {
  if (returned > 0) buffer_of(returned - 1).copy_done.wait();
}

// Pauses the threads, resets all counters, and lets the threads resume at `cursor`.
void Loader::State::start(Cursor cursor) {
  wait_for_copy();
  {
    std::unique_lock lock(mutex);
    paused = true;
    task_finished.wait(lock, [this] { return active_readers == 0; });
    for (BatchBuffer& buffer : buffers) {
      buffer.loaded_index = -1;
      buffer.error = nullptr;
    }
    returned = released = 0;
    if (comparison) comparison->reset();
    next_task = next_ahead = {0, 0, cursor};
    pass_length =
        options.training ? std::numeric_limits<std::int64_t>::max() : micro_batches_per_pass;
    paused = false;
  }
  task_available.notify_all();
}

const MicroBatch& Loader::State::next(std::exception_ptr* error) {
  wait_for_copy();
  std::unique_lock lock(mutex);
  TRIREME_EXPECT(!paused && returned < pass_length);
  released = returned;
  task_available.notify_all();
  BatchBuffer& buffer = buffer_of(returned);
  task_finished.wait(lock, [&] { return buffer.loaded_index == returned; });
  if (buffer.error) {
    if (error == nullptr) std::rethrow_exception(buffer.error);
    if (!*error) *error = buffer.error;
    for (std::int64_t row = 0; row < options.micro; ++row) clear_row(row, buffer);
    buffer.batch.valid_rows = 0;
  }
  ++returned;
  // Micro-batches are returned in order, so earlier epochs are over for all threads.
  if (comparison) comparison->forget_before(buffer.batch.step_start.epoch);
  return buffer.batch;
}

Loader::State::ReadTask Loader::State::after(const ReadTask& task) const {
  ReadTask next{task.index + 1, task.index_in_step + 1, task.step};
  if (options.training && next.index_in_step == micro_batches_per_step) {
    next.index_in_step = 0;
    next.step = options.batching.advance(task.step);
  }
  return next;
}

// The loop of a reader thread. It ends when the loader is destroyed. `samples_ahead` is memory that
// was allocated before the thread began.
void Loader::State::run_reader(std::vector<std::int64_t> samples_ahead) {
  ReaderState reader;
  std::unique_lock lock(mutex);
  const auto has_task = [this] {
    return !paused && next_task.index < pass_length &&
           next_task.index < released + static_cast<std::int64_t>(buffers.size());
  };
  while (true) {
    task_available.wait(lock, [&] { return ending || has_task(); });
    if (ending) return;
    const ReadTask task = std::exchange(next_task, after(next_task));
    BatchBuffer& buffer = buffer_of(task.index);
    // The micro-batches that this thread asks the system for: [first_ahead, last_ahead].
    if (next_ahead.index <= task.index) next_ahead = next_task;
    const ReadTask first_ahead = next_ahead;
    // It is asked for at least half of `ahead` at once, so that neighbors can be merged.
    const bool asks =
        reading_is_slow && options.inputs && next_ahead.index <= task.index + 1 + (ahead - 1) / 2;
    const std::int64_t last_ahead = asks ? std::min(task.index + ahead, pass_length - 1) : -1;
    while (next_ahead.index <= last_ahead) next_ahead = after(next_ahead);
    ++active_readers;
    lock.unlock();
    std::exception_ptr error;
    try {
      const ProfileRange range("trireme/data/read", "readers");
      read_ahead(first_ahead, last_ahead, samples_ahead);
      fill(task, buffer, reader);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    --active_readers;
    record_time(reader.times.read);
    buffer.error = error;
    buffer.loaded_index = task.index;
    task_finished.notify_all();
  }
}

// Called with the mutex held, after a micro-batch was read.
void Loader::State::record_time(double seconds) {
  const double in_memory =
      static_cast<double>(options.micro) *
      (seconds_per_sample_in_memory +
       seconds_per_byte_in_memory * static_cast<double>(dataset.stored_bytes()));
  reading_is_slow = seconds > in_memory;
}

// Asks the system for the samples of the micro-batches from `task` to number `last`. `samples` is
// memory that is used again.
void Loader::State::read_ahead(ReadTask task, std::int64_t last,
                               std::vector<std::int64_t>& samples) const {
  samples.clear();
  for (; task.index <= last; task = after(task)) {
    for (std::int64_t row = 0; row < options.micro; ++row) {
      const SampleOfRow place = sample_of_row(task, row);
      if (place.sample >= 0) samples.push_back(place.sample);
    }
  }
  dataset.read_ahead(samples);
}

Loader::State::SampleOfRow Loader::State::sample_of_row(const ReadTask& task,
                                                        std::int64_t row) const {
  if (options.training) {
    const std::int64_t rank_in_part = options.data_rank % options.interleaved_ranks,
                       first_rank = options.data_rank - rank_in_part;
    const std::int64_t row_in_step =
        first_rank * (options.batching.global_batch / options.data_size) +
        (task.index_in_step * options.interleaved_ranks + rank_in_part) * options.micro + row;
    const Cursor place = options.batching.locate(task.step, row_in_step);
    return {options.order.sample_at(place.epoch, place.position), place.epoch};
  }
  const std::int64_t sample =
      (task.index * options.data_size + options.data_rank) * options.micro + row;
  return {sample < options.order.samples ? options.order.index_of(sample) : -1, 0};
}

void Loader::State::fill(const ReadTask& task, BatchBuffer& buffer, ReaderState& reader) {
  reader.times = {};
  buffer.batch.valid_rows = 0;
  for (std::int64_t row = 0; row < options.micro; ++row) {
    const SampleOfRow place = sample_of_row(task, row);
    if (place.sample >= 0) {
      fill_row(row, place.sample, place.epoch, buffer, reader);
      ++buffer.batch.valid_rows;
    } else {
      clear_row(row, buffer);
    }
  }
  if (options.training && options.augmentation.mixing.is_on()) mix_pairs(buffer);
  buffer.batch.times = reader.times;
  buffer.batch.step_start = options.training ? options.batching.locate(task.step, 0) : Cursor{0, 0};
}

void Loader::State::fill_row(std::int64_t row, std::int64_t sample, std::int64_t epoch,
                             BatchBuffer& buffer, ReaderState& reader) {
  const RowPointers data = pointers_of_row(row, buffer);
  // A damaged block is reported as such, and not as an image that cannot be decoded.
  if (comparison) {
    const double begin = monotonic_seconds();
    comparison->compare(epoch, sample);
    reader.times.verify += monotonic_seconds() - begin;
  }
  // Without either the disk is not read.
  if (data.inputs != nullptr || data.labels != nullptr)
    dataset.read(sample, data.inputs, data.labels, epoch, reader);
  buffer.transforms[row] =
      options.training ? options.augmentation.transform_of(epoch, sample) : ops::ImageTransform{};
  if (data.labels != nullptr && dataset.info().target.height > 0) {
    const double begin = monotonic_seconds();
    move_map(dataset.sample(), buffer.transforms[row], data.labels, reader.scratch);
    reader.times.augment += monotonic_seconds() - begin;
  }
  buffer.samples[row] = sample;
  buffer.keys[row] = sample_key(epoch, sample);
}

// Draws the mixes of rows 2n and 2n + 1. Every stage of a pipeline does: one needs the pixels,
// another the weights.
void Loader::State::mix_pairs(BatchBuffer& buffer) const {
  for (std::int64_t row = 0; row < options.micro; row += 2)
    options.augmentation.mix_pair(buffer.keys + row, buffer.transforms + row);
  for (std::int64_t row = 0; buffer.label_weights != nullptr && row < options.micro; ++row)
    buffer.label_weights[row] = buffer.transforms[row].weight;
}

// Fills a padding row.
void Loader::State::clear_row(std::int64_t row, BatchBuffer& buffer) const {
  const RowPointers data = pointers_of_row(row, buffer);
  if (data.inputs != nullptr)
    std::memset(data.inputs, 0, static_cast<std::size_t>(dataset.sample().input_bytes()));
  if (data.labels != nullptr) {
    const std::int64_t labels = dataset.sample().labels.elements();
    if (dataset.sample().label_type == DType::float32)
      std::fill_n(reinterpret_cast<float*>(data.labels), labels,
                  std::numeric_limits<float>::quiet_NaN());
    else
      std::fill_n(reinterpret_cast<std::int32_t*>(data.labels), labels, -1);
  }
  buffer.transforms[row] = {};
  buffer.samples[row] = -1;
  buffer.keys[row] = 0;
}

Loader::State::RowPointers Loader::State::pointers_of_row(std::int64_t row,
                                                          const BatchBuffer& buffer) const {
  RowPointers data;
  if (options.inputs)
    data.inputs =
        static_cast<std::byte*>(buffer.batch.inputs.data) + row * dataset.sample().input_bytes();
  if (options.labels)
    data.labels = static_cast<std::byte*>(buffer.batch.labels.data) +
                  row * dataset.sample().labels.elements() * size_of(dataset.sample().label_type);
  return data;
}

std::uint64_t sample_key(std::int64_t epoch, std::int64_t sample) {
  return mix64(mix64(static_cast<std::uint64_t>(epoch) + 0x9E3779B97F4A7C15ull) ^
               static_cast<std::uint64_t>(sample));
}

Loader::Loader(const Dataset& dataset, const LoaderOptions& options)
    : state_(std::make_unique<State>(dataset, options)) {}
Loader::~Loader() = default;
void Loader::start(Cursor cursor) { state_->start(cursor); }
const MicroBatch& Loader::next() { return state_->next(nullptr); }
const MicroBatch& Loader::next(std::exception_ptr& error) { return state_->next(&error); }
std::int64_t Loader::micro_batches_per_pass() const { return state_->micro_batches_per_pass; }

}  // namespace trireme::data
