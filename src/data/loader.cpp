#include "trireme/data/loader.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::data {
namespace {

std::int64_t rounded_up(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}  // no two parts share a cache line

}  // namespace

// Micro-batch k of a pass is filled into slot k mod slots by the reader that took ticket k. Tickets
// are handed out in order and only as far as slots are free, so what a ticket stands for (step,
// part of the step) is known without a table.
struct Loader::State {
  struct Slot {
    MicroBatch batch;
    ops::ImageTransform* transforms = nullptr;
    std::int64_t* samples = nullptr;
    std::uint64_t* keys = nullptr;
    std::int32_t* ids = nullptr;  // tokens: of the row being read
    Event copied;
    std::int64_t ready = -1;  // the micro-batch it holds
    std::exception_ptr error;
  };
  struct Row {  // of a slot; null: not asked for
    std::byte* inputs = nullptr;
    std::int32_t* labels = nullptr;
  };
  struct Ticket {
    std::int64_t index = 0;  // of the micro-batch in the pass
    std::int64_t part = 0;   // training: of the step
    Cursor step;
  };

  State(const Dataset& dataset_in, const LoaderOptions& options_in);
  ~State();
  void take_memory();
  void end_readers();
  void start(Cursor cursor);
  const MicroBatch& next();
  void await_copies();

  Ticket take_ticket();
  void work();
  void fill(const Ticket& ticket, Slot& slot) const;
  void fill_row(std::int64_t row, std::int64_t sample, std::int64_t epoch, Slot& slot) const;
  void clear_row(std::int64_t row, Slot& slot) const;
  Row row_of(std::int64_t row, const Slot& slot) const;
  Slot& slot_of(std::int64_t index) {
    return slots[static_cast<std::size_t>(index) % slots.size()];
  }

  const Dataset& dataset;
  const LoaderOptions options;
  std::int64_t parts = 1;   // micro-batches of a step
  std::int64_t rounds = 0;  // evaluation: micro-batches of a pass
  Allocation memory;
  std::vector<Slot> slots;

  std::mutex mutex;
  std::condition_variable work_may_go_on, something_done;
  bool ending = false, paused = true;
  int busy = 0;
  std::int64_t pass_end = 0;  // micro-batches of the pass
  std::int64_t next_ticket = 0;
  std::int64_t given = 0;     // handed to the caller; the last of them is still the caller's
  std::int64_t released = 0;  // before these, slots are free
  Cursor planned;             // step of the next ticket
  std::vector<std::thread> readers;
};

Loader::State::State(const Dataset& dataset_in, const LoaderOptions& options_in)
    : dataset(dataset_in), options(options_in) {
  const std::int64_t samples = dataset.info().samples, micro = options.micro;
  TRIREME_EXPECT(micro >= 1 && options.data_size >= 1 && options.data_rank >= 0 &&
                 options.data_rank < options.data_size);
  const std::int64_t together = micro * options.data_size;
  if (options.training) {
    const std::int64_t global = options.cutter.global;
    TRIREME_EXPECT(options.cutter.samples == samples && options.order.samples == samples);
    validate(global > 0 && global % together == 0,
             "batch.global = {} does not divide into micro-batches of {} on {} replicas; multiples "
             "of {} do",
             global, micro, options.data_size, together);
    validate(!options.cutter.drop_last || global <= samples,
             "batch.global = {} is more than the {} training samples, and data.drop_last leaves "
             "incomplete steps out: no step would be left",
             global, samples);
    parts = global / together;
  } else {
    rounds = (samples + together - 1) / together;
  }
  take_memory();
  try {
    for (int i = 0; i < std::max(options.workers, 1); ++i) readers.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    end_readers();
    throw Failure(fmt::format("data.workers = {}: this host gives no more threads: {}",
                              options.workers, error.what()));
  }
}

void Loader::State::take_memory() {
  const DatasetInfo& info = dataset.info();
  const std::int64_t micro = options.micro;
  const bool images = info.kind == DatasetKind::images;
  const Shape inputs =
      images ? Shape{micro, info.height, info.width, info.channels} : Shape{micro, info.context};
  const Shape labels = images ? Shape{micro} : Shape{micro, info.context};
  const std::int64_t input_bytes = options.inputs ? rounded_up(micro * dataset.sample_bytes()) : 0;
  const std::int64_t label_bytes =
      options.labels ? rounded_up(labels.elements() * size_of(DType::int32)) : 0;
  const std::int64_t transform_bytes =
      rounded_up(micro * static_cast<std::int64_t>(sizeof(ops::ImageTransform)));
  const std::int64_t index_bytes =
      rounded_up(micro * static_cast<std::int64_t>(sizeof(std::int64_t)));
  const std::int64_t id_bytes = images ? 0 : rounded_up((info.context + 1) * size_of(DType::int32));
  const std::int64_t slot_bytes =
      input_bytes + label_bytes + transform_bytes + 2 * index_bytes + id_bytes;
  slots.resize(static_cast<std::size_t>(std::max(options.prefetch, 1)) +
               1);  // one more is in the caller's hands
  memory = Allocation({DeviceKind::cpu, 0}, slots.size() * static_cast<std::size_t>(slot_bytes),
                      "batches read ahead (data.prefetch)",
                      in_host_memory(options.device.kind) ? Pages::pageable : Pages::pinned);
  std::byte* at = memory.data();
  const auto take = [&at](std::int64_t bytes) { return std::exchange(at, at + bytes); };
  for (Slot& slot : slots) {
    slot.copied = Event(options.device);
    slot.batch.copied = &slot.copied;
    if (options.inputs)
      slot.batch.inputs = {take(input_bytes), images ? DType::uint8 : DType::int32, DeviceKind::cpu,
                           inputs};
    if (options.labels)
      slot.batch.labels = {take(label_bytes), DType::int32, DeviceKind::cpu, labels};
    slot.batch.transforms = slot.transforms =
        reinterpret_cast<ops::ImageTransform*>(take(transform_bytes));
    slot.batch.samples = slot.samples = reinterpret_cast<std::int64_t*>(take(index_bytes));
    slot.batch.sample_keys = slot.keys = reinterpret_cast<std::uint64_t*>(take(index_bytes));
    slot.ids = reinterpret_cast<std::int32_t*>(take(id_bytes));
  }
}

Loader::State::~State() { end_readers(); }

void Loader::State::end_readers() {
  {
    const std::lock_guard lock(mutex);
    ending = true;
  }
  work_may_go_on.notify_all();
  for (std::thread& reader : readers) reader.join();
}

/// Of the micro-batch that the caller has; those before it were waited for when it was given.
void Loader::State::await_copies() {
  if (given > 0) slot_of(given - 1).copied.wait();
}

void Loader::State::start(Cursor cursor) {
  await_copies();
  {
    std::unique_lock lock(mutex);
    paused = true;
    something_done.wait(lock, [this] { return busy == 0; });
    for (Slot& slot : slots) {
      slot.ready = -1;
      slot.error = nullptr;
    }
    next_ticket = given = released = 0;
    planned = cursor;
    pass_end = options.training ? std::numeric_limits<std::int64_t>::max() : rounds;
    paused = false;
  }
  work_may_go_on.notify_all();
}

const MicroBatch& Loader::State::next() {
  await_copies();
  std::unique_lock lock(mutex);
  TRIREME_EXPECT(!paused && given < pass_end);
  released = given;
  work_may_go_on.notify_all();
  Slot& slot = slot_of(given);
  something_done.wait(lock, [&] { return slot.ready == given; });
  if (slot.error) std::rethrow_exception(slot.error);
  ++given;
  return slot.batch;
}

Loader::State::Ticket Loader::State::take_ticket() {
  Ticket ticket{next_ticket, next_ticket % parts, planned};
  ++next_ticket;
  if (options.training && next_ticket % parts == 0) planned = options.cutter.advance(planned);
  return ticket;
}

void Loader::State::work() {
  std::unique_lock lock(mutex);
  const auto has_work = [this] {
    return !paused && next_ticket < pass_end &&
           next_ticket < released + static_cast<std::int64_t>(slots.size());
  };
  while (true) {
    work_may_go_on.wait(lock, [&] { return ending || has_work(); });
    if (ending) return;
    const Ticket ticket = take_ticket();
    Slot& slot = slot_of(ticket.index);
    ++busy;
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(ticket, slot);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    --busy;
    slot.error = error;
    slot.ready = ticket.index;
    something_done.notify_all();
  }
}

void Loader::State::fill(const Ticket& ticket, Slot& slot) const {
  if (options.training) {
    const std::int64_t first_row = options.data_rank * (options.cutter.global / options.data_size) +
                                   ticket.part * options.micro;
    for (std::int64_t row = 0; row < options.micro; ++row) {
      const Cursor place = options.cutter.locate(ticket.step, first_row + row);
      fill_row(row, options.order.sample(place.epoch, place.taken), place.epoch, slot);
    }
    slot.batch.valid = options.micro;
    slot.batch.start = options.cutter.locate(ticket.step, 0);
    return;
  }
  const std::int64_t first = (ticket.index * options.data_size + options.data_rank) * options.micro;
  slot.batch.valid = std::clamp<std::int64_t>(dataset.info().samples - first, 0, options.micro);
  slot.batch.start = {0, 0};
  for (std::int64_t row = 0; row < options.micro; ++row) {
    if (row < slot.batch.valid)
      fill_row(row, first + row, 0, slot);
    else
      clear_row(row, slot);
  }
}

void Loader::State::fill_row(std::int64_t row, std::int64_t sample, std::int64_t epoch,
                             Slot& slot) const {
  const Row data = row_of(row, slot);
  if (data.inputs != nullptr || data.labels != nullptr) {
    if (dataset.info().kind == DatasetKind::images) {
      dataset.read(sample, data.inputs, data.labels);
    } else {
      dataset.read_tokens(sample, slot.ids);
      const std::int64_t context = dataset.info().context;
      if (data.inputs != nullptr)
        std::copy_n(slot.ids, context, reinterpret_cast<std::int32_t*>(data.inputs));
      if (data.labels != nullptr) std::copy_n(slot.ids + 1, context, data.labels);
    }
  }
  slot.transforms[row] =
      options.training ? options.augmentation.at(epoch, sample) : ops::ImageTransform{};
  slot.samples[row] = sample;
  slot.keys[row] = sample_key(epoch, sample);
}

void Loader::State::clear_row(std::int64_t row, Slot& slot) const {
  const Row data = row_of(row, slot);
  if (data.inputs != nullptr)
    std::memset(data.inputs, 0, static_cast<std::size_t>(dataset.sample_bytes()));
  if (data.labels != nullptr) std::fill_n(data.labels, dataset.sample_labels(), -1);
  slot.transforms[row] = {};
  slot.samples[row] = -1;
  slot.keys[row] = 0;
}

Loader::State::Row Loader::State::row_of(std::int64_t row, const Slot& slot) const {
  Row data;
  if (options.inputs)
    data.inputs = static_cast<std::byte*>(slot.batch.inputs.data) + row * dataset.sample_bytes();
  if (options.labels)
    data.labels = slot.batch.labels.as<std::int32_t>() + row * dataset.sample_labels();
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
const MicroBatch& Loader::next() { return state_->next(); }
std::int64_t Loader::rounds() const { return state_->rounds; }

}  // namespace trireme::data
