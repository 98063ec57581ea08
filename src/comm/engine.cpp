#include "trireme/comm/engine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "sum.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::comm {
namespace {

// Requests that MPI works on at once; later ones wait their turn.
constexpr Engine::Ticket window = 8;
// Requests that may be asked for and not done; one more waits.
constexpr Engine::Ticket capacity = 512;

bool any_thread_may_call() {
  int initialized = 0, granted = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  if (initialized != 0) MPI_Query_thread(&granted);
  return granted == MPI_THREAD_MULTIPLE;
}

/// Between two looks at what is under way: gives the core away at once, and sleeps when it takes longer.
void pause(int idle) {
  if (idle < 64) std::this_thread::yield();
  else std::this_thread::sleep_for(std::chrono::microseconds(20));
}

}  // namespace

/// A ring of requests. Tickets count from 1; request t is in slot (t - 1) % capacity. [0, retired) are done, [retired, started) are with
/// MPI, [started, asked) wait. `asked` is the main thread's, `started` and `retired` belong to whoever drives.
struct Engine::State {
  struct Slot {
    Communicator group;  // keeps the group alive
    Sum::Task task;
    std::string_view label;
    Sum sum;
    bool done = false;
  };

  explicit State(Drive drive_in) : drive(drive_in), ring(capacity) {}

  Slot& slot(Ticket index) { return ring[index % capacity]; }
  bool advance();
  void run();
  void wait(Ticket ticket);

  const Drive drive;
  std::vector<Slot> ring;
  std::mutex mutex;
  std::condition_variable work, progress_made;
  std::atomic<Ticket> asked{0}, started{0}, retired{0};
  bool stopping = false;
  std::exception_ptr error;
  double bytes_sent = 0, waited_seconds = 0;
  std::thread thread;
};

/// One look at all that is under way; true where something began or ended.
bool Engine::State::advance() {
  bool moved = false;
  for (; started < asked && started < retired + window; ++started) {
    Slot& next = slot(started);
    next.sum.start(next.task);
    next.done = false;
    moved = true;
  }
  for (Ticket index = retired; index < started; ++index) {
    Slot& current = slot(index);
    if (current.done) continue;
    current.done = current.sum.advance();
    moved = moved || current.done;
  }
  Ticket through = retired;
  while (through < started && slot(through).done) ++through;
  if (through == retired) return moved;
  {
    const std::lock_guard lock(mutex);
    retired = through;
  }
  progress_made.notify_all();
  return true;
}

void Engine::State::run() {
  try {
    int idle = 0;
    while (true) {
      {
        std::unique_lock lock(mutex);
        work.wait(lock, [&] { return stopping || asked > retired; });
        if (stopping) return;
      }
      if (advance()) idle = 0;
      else pause(idle++);
    }
  } catch (...) {
    const std::lock_guard lock(mutex);
    error = std::current_exception();
  }
  progress_made.notify_all();
}

void Engine::State::wait(Ticket ticket) {
  if (retired >= ticket) return;
  const double begin = monotonic_seconds();
  if (drive == Drive::polled) {
    for (int idle = 0; retired < ticket;) {
      if (advance()) idle = 0;
      else pause(idle++);
    }
  } else {
    std::unique_lock lock(mutex);
    progress_made.wait(lock, [&] { return retired >= ticket || error != nullptr; });
    if (retired < ticket) std::rethrow_exception(error);
  }
  waited_seconds += monotonic_seconds() - begin;
}

Engine::Engine(Drive drive) : state_(std::make_unique<State>(any_thread_may_call() ? drive : Drive::polled)) {
  if (state_->drive == Drive::thread) state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Engine::~Engine() {
  if (!state_->thread.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work.notify_all();
  state_->thread.join();
}

Engine::Ticket Engine::all_reduce(const Communicator& group, float* data, float* scratch, std::int64_t count, SumOrder order, std::string_view label) {
  State& state = *state_;
  auto* ranks = dynamic_cast<MpiForm*>(&group.form());
  if (ranks == nullptr) group.form().bytes += group.size() > 1 ? static_cast<double>(count) * sizeof(float) : 0;
  if (ranks == nullptr || ranks->size == 1 || count == 0) return 0;  // ticket 0 is done before the first
  TRIREME_EXPECT(order == SumOrder::library || scratch != nullptr);
  for (std::int64_t begin = 0; begin < count; begin += Sum::longest) {
    if (state.asked >= capacity) state.wait(state.asked - capacity + 1);
    State::Slot& slot = state.slot(state.asked);
    slot.group = group;
    slot.task = {ranks, data + begin, scratch == nullptr ? nullptr : scratch + begin, std::min(Sum::longest, count - begin), order};
    slot.label = label;
    state.bytes_sent += Sum::bytes_sent(slot.task);
    {
      const std::lock_guard lock(state.mutex);
      ++state.asked;
    }
    state.work.notify_one();
  }
  if (state.drive == Drive::polled) state.advance();
  return state.asked;
}

void Engine::progress() {
  if (state_->drive == Drive::polled) state_->advance();
}

void Engine::wait(Ticket ticket) { state_->wait(ticket); }
void Engine::quiesce() { state_->wait(state_->asked); }
Engine::Drive Engine::drive() const { return state_->drive; }

std::vector<std::string> Engine::describe() const {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);  // a slot that is not retired is not written to
  std::vector<std::string> lines;
  for (Ticket index = state.retired; index < state.asked; ++index) {
    const State::Slot& slot = state.slot(index);
    lines.push_back(fmt::format("all_reduce {} {}: {} floats over {} ranks, {} order, {}", index + 1, slot.label, slot.task.count, slot.task.group->size,
                                slot.task.order == SumOrder::tree ? "tree" : "library", index < state.started ? "under way" : "waiting"));
  }
  return lines;
}

double Engine::bytes_sent() const { return state_->bytes_sent; }
double Engine::waited_seconds() const { return state_->waited_seconds; }

}  // namespace trireme::comm
