#include "trireme/comm/engine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "all_gather.hpp"
#include "all_reduce.hpp"
#include "message.hpp"
#include "reduce_scatter.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::comm {
namespace {

// Sums and gathers of one group that are under way at once; later ones wait their turn.
constexpr int window = 8;
// Requests that a step asks for before it waits are mostly fewer; more of them take memory once.
constexpr std::size_t usual_requests = 256;
// The number of a slot within a ticket.
constexpr int slot_bits = 20;
// MPI promises tags up to 32767. The upper half is for messages; in the lower one the requests of a group are counted, of which far fewer are under way at once.
constexpr int tags = 1 << 14;

bool any_thread_may_call() {
  int initialized = 0, granted = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  if (initialized != 0) MPI_Query_thread(&granted);
  return granted == MPI_THREAD_MULTIPLE;
}

/// Between two looks at what is under way: gives the core away at once, and sleeps when it takes longer, for a few percent of the time waited so
/// far: many ranks on few cores leave them to those that have work.
void pause(int idle) {
  constexpr int yields = 64, longest_us = 1000;
  if (idle < yields) std::this_thread::yield();
  else std::this_thread::sleep_for(std::chrono::microseconds(std::min(20 + 4 * (idle - yields), longest_us)));
}

/// The ranks to speak with; null where there are none: in a group of one, and in one that is not here, which counts what this rank would send.
MpiForm* peers(const Communicator& group, double meta_bytes) {
  auto* ranks = dynamic_cast<MpiForm*>(&group.form());
  if (ranks == nullptr && group.size() > 1) group.form().bytes += meta_bytes;
  return group.size() > 1 ? ranks : nullptr;
}

/// Of what goes round a ring, the bytes that a rank sends.
double ring_bytes(const Communicator& group, std::int64_t bytes) { return static_cast<double>(bytes) * (group.size() - 1) / group.size(); }

/// A group's requests are counted, alike on all its ranks: so their messages find each other whenever they are started.
int next_tag(MpiForm& group) { return static_cast<int>(group.engine_requests++ % tags); }

}  // namespace

/// Requests stand in slots, which are used again and again. One thread drives at a time, the holder of `driving`: the main one where it waits,
/// else the engine's own; without it, the main one whenever it calls. What both touch is guarded by `mutex`, or atomic.
struct Engine::State {
  using Work = std::variant<AllReduce, ReduceScatter, AllGather, Send, Receive>;
  struct Group;

  struct Slot {
    explicit Slot(std::size_t number_in) : number(number_in) {}

    const std::size_t number;
    std::uint64_t uses = 0, turn = 0;   // how often it was used; which request of the engine this is
    std::atomic<Ticket> ticket{0};      // 0: free. A ticket is (use, number of the slot): it is done once another stands here
    std::atomic<bool> under_way{false};
    std::optional<Work> work;
    std::string_view label;
    Group* group = nullptr;
    bool in_order = false;  // a sum or gather: started in the order asked for, few at once
    int tag = 0, step = 0, steps = 0;
    Calls calls;
    Slot* next = nullptr;  // in the one list in which it stands
  };

  struct List {
    Slot *first = nullptr, *last = nullptr;
    bool empty() const { return first == nullptr; }
    void push(Slot& slot) {
      slot.next = nullptr;
      (empty() ? first : last->next) = &slot;
      last = &slot;
    }
    Slot& pop() {
      Slot& slot = *first;
      first = slot.next;
      return slot;
    }
  };

  struct Group {
    Communicator ranks;  // keeps it alive
    MpiForm* form = nullptr;
    List waiting;
    int under_way = 0;  // of those in order
  };

  State(Drive drive_in, std::int64_t longest_in) : drive(drive_in), longest(longest_in) {
    while (slots.size() < usual_requests) free.push(slots.emplace_back(slots.size()));
    under_way.reserve(usual_requests);
  }

  template <class Kind>
  Ticket ask(const Communicator& ranks, MpiForm& form, int tag, std::string_view label, const Kind& asked_for);
  Slot& take_slot();
  Group& group_of(const Communicator& ranks, MpiForm& form);
  bool drive_once();
  bool advance();
  bool advance(Slot& slot);
  void begin(Slot& slot);
  void retire(List done);
  void run();
  template <class Done>
  void wait_until(Done&& done);

  const Drive drive;
  const std::int64_t longest;
  std::deque<Slot> slots;    // grown by the main thread, under the mutex
  std::deque<Group> groups;  // looked through by the main thread alone
  std::uint64_t requests = 0;
  double waited_seconds = 0;

  std::mutex driving;
  std::vector<Slot*> under_way;  // in the order of their start
  std::exception_ptr error;      // whoever drove met it: nothing moves any more

  mutable std::mutex mutex;
  std::condition_variable wake;
  List free, coming;
  double bytes_sent = 0;
  bool stopping = false;
  std::atomic<std::int64_t> pending{0};
  std::atomic<bool> main_drives{false};
  std::thread thread;
};

Engine::State::Slot& Engine::State::take_slot() {
  const std::lock_guard lock(mutex);
  if (free.empty()) free.push(slots.emplace_back(slots.size()));
  return free.pop();
}

Engine::State::Group& Engine::State::group_of(const Communicator& ranks, MpiForm& form) {
  const auto known = std::find_if(groups.begin(), groups.end(), [&](const Group& group) { return group.form == &form; });
  return known != groups.end() ? *known : groups.emplace_back(Group{ranks, &form, {}, 0});
}

template <class Kind>
Engine::Ticket Engine::State::ask(const Communicator& ranks, MpiForm& form, int tag, std::string_view label, const Kind& asked_for) {
  Slot& slot = take_slot();
  slot.turn = ++requests;
  slot.work = asked_for;
  slot.label = label;
  slot.group = &group_of(ranks, form);
  slot.in_order = !std::is_same_v<Kind, Send> && !std::is_same_v<Kind, Receive>;
  slot.tag = tag;
  slot.under_way = false;
  const Ticket ticket = ++slot.uses << slot_bits | slot.number;
  {
    const std::lock_guard lock(mutex);
    slot.ticket = ticket;
    coming.push(slot);
    ++pending;
  }
  if (drive == Drive::thread) wake.notify_one();
  else drive_once();
  return ticket;
}

/// One look at all that is under way; true where something ended. By the holder of `driving`, or where there is no other thread.
bool Engine::State::drive_once() {
  if (error) std::rethrow_exception(error);
  if (pending == 0) return false;
  try {
    return advance();
  } catch (...) {
    error = std::current_exception();
    throw;
  }
}

bool Engine::State::advance() {
  List newest;
  {
    const std::lock_guard lock(mutex);
    std::swap(newest, coming);
  }
  while (!newest.empty()) {
    Slot& slot = newest.pop();
    if (slot.in_order && slot.group->under_way == window) slot.group->waiting.push(slot);
    else begin(slot);
  }
  List done;
  std::erase_if(under_way, [&](Slot* slot) {
    const bool ended = advance(*slot);
    if (ended) done.push(*slot);
    return ended;
  });
  if (done.empty()) return false;
  for (Slot* slot = done.first; slot != nullptr; slot = slot->next) {
    if (!slot->in_order) continue;
    --slot->group->under_way;
    if (!slot->group->waiting.empty()) begin(slot->group->waiting.pop());
  }
  retire(done);
  return true;
}

void Engine::State::begin(Slot& slot) {
  under_way.push_back(&slot);
  slot.under_way = true;
  slot.group->under_way += slot.in_order;
  slot.calls.begin(*slot.group->form, slot.tag, longest);
  slot.step = 0;
  slot.steps = std::visit([](const auto& work) { return work.steps(); }, *slot.work);
  std::visit([&](const auto& work) { work.post(slot.calls, 0); }, *slot.work);
}

/// Goes on where a step has ended; true when all is done.
bool Engine::State::advance(Slot& slot) {
  while (slot.calls.ended()) {
    std::visit([&](const auto& work) { work.complete(slot.step); }, *slot.work);
    if (++slot.step == slot.steps) return true;
    std::visit([&](const auto& work) { work.post(slot.calls, slot.step); }, *slot.work);
  }
  return false;
}

void Engine::State::retire(List done) {
  const std::lock_guard lock(mutex);
  while (!done.empty()) {
    Slot& slot = done.pop();
    bytes_sent += slot.calls.bytes_sent();
    slot.ticket = 0;
    free.push(slot);
    --pending;
  }
}

void Engine::State::run() {
  for (int idle = 0;;) {
    {
      std::unique_lock lock(mutex);
      if (pending == 0) idle = 0;
      wake.wait(lock, [&] { return stopping || (pending > 0 && !main_drives); });
      if (stopping) return;
    }
    try {
      const std::lock_guard driver(driving);
      if (drive_once()) idle = 0;
      else ++idle;
    } catch (...) {
      return;  // kept in `error`: the main thread meets it when it waits
    }
    if (idle > 0) pause(idle);
  }
}

/// The main thread drives until done(): it would have nothing else to do, and a thread that had to be woken up costs time.
template <class Done>
void Engine::State::wait_until(Done&& done) {
  if (done()) return;
  const double begin = monotonic_seconds();
  main_drives = true;
  {
    const std::lock_guard driver(driving);
    for (int idle = 0; !done();) {
      if (drive_once()) idle = 0;
      else pause(idle++);
    }
  }
  {
    const std::lock_guard lock(mutex);
    main_drives = false;
  }
  wake.notify_one();
  waited_seconds += monotonic_seconds() - begin;
}

Engine::Engine(Drive drive, std::int64_t longest_call) : state_(std::make_unique<State>(any_thread_may_call() ? drive : Drive::polled, longest_call)) {
  if (state_->drive == Drive::thread) state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Engine::~Engine() {
  if (!state_->thread.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  state_->thread.join();
}

Engine::Ticket Engine::all_reduce(const Communicator& group, float* data, float* scratch, std::int64_t count, SumOrder order, std::string_view label) {
  MpiForm* ranks = peers(group, static_cast<double>(count) * sizeof(float));
  if (ranks == nullptr || count == 0) return 0;  // ticket 0 is done from the start
  TRIREME_EXPECT(order == SumOrder::library || scratch != nullptr);
  return state_->ask(group, *ranks, next_tag(*ranks), label, AllReduce({group.rank(), group.size()}, data, scratch, count, order));
}

Engine::Ticket Engine::reduce_scatter(const Communicator& group, float* data, float* scratch, std::span<const std::int64_t> bounds, float* result,
                                      SumOrder order, std::string_view label) {
  TRIREME_EXPECT(std::ssize(bounds) == group.size() + 1 && std::is_sorted(bounds.begin(), bounds.end()));
  const std::int64_t count = bounds.back() - bounds.front();
  MpiForm* ranks = peers(group, ring_bytes(group, count * std::int64_t{sizeof(float)}));
  if (group.size() == 1 && data != nullptr) std::copy_n(data + bounds.front(), count, result);
  if (ranks == nullptr || count == 0) return 0;
  TRIREME_EXPECT(order == SumOrder::library || scratch != nullptr);
  return state_->ask(group, *ranks, next_tag(*ranks), label, ReduceScatter({group.rank(), group.size()}, data, scratch, bounds, result, order));
}

Engine::Ticket Engine::all_gather(const Communicator& group, std::byte* data, std::span<const std::int64_t> bounds, std::string_view label) {
  TRIREME_EXPECT(std::ssize(bounds) == group.size() + 1 && std::is_sorted(bounds.begin(), bounds.end()));
  const std::int64_t bytes = bounds.back() - bounds.front();
  MpiForm* ranks = peers(group, ring_bytes(group, bytes));
  if (ranks == nullptr || bytes == 0) return 0;
  return state_->ask(group, *ranks, next_tag(*ranks), label, AllGather({group.rank(), group.size()}, data, bounds));
}

Engine::Ticket Engine::send(const Communicator& group, std::span<const std::byte> data, int to, int tag, std::string_view label) {
  TRIREME_EXPECT(0 <= to && to < group.size() && to != group.rank() && 0 <= tag && tag < tags);
  MpiForm* ranks = peers(group, static_cast<double>(data.size()));
  if (ranks == nullptr || data.empty()) return 0;
  return state_->ask(group, *ranks, tags + tag, label, Send(data, to, tag));
}

Engine::Ticket Engine::receive(const Communicator& group, std::span<std::byte> data, int from, int tag, std::string_view label) {
  TRIREME_EXPECT(0 <= from && from < group.size() && from != group.rank() && 0 <= tag && tag < tags);
  MpiForm* ranks = peers(group, 0);
  if (ranks == nullptr || data.empty()) return 0;
  return state_->ask(group, *ranks, tags + tag, label, Receive(data, from, tag));
}

void Engine::progress() {
  if (state_->drive == Drive::polled) state_->drive_once();
}

void Engine::wait(Ticket ticket) {
  const State::Slot& slot = state_->slots[ticket & ((Ticket{1} << slot_bits) - 1)];
  state_->wait_until([&] { return ticket == 0 || slot.ticket != ticket; });
}

void Engine::quiesce() {
  state_->wait_until([&] { return state_->pending == 0; });
}

Engine::Drive Engine::drive() const { return state_->drive; }

std::vector<std::string> Engine::describe() const {
  const std::lock_guard lock(state_->mutex);  // no request ends meanwhile, and its slot is not given to another
  std::vector<const State::Slot*> pending;
  for (const State::Slot& slot : state_->slots) {
    if (slot.ticket != 0) pending.push_back(&slot);
  }
  std::sort(pending.begin(), pending.end(), [](const State::Slot* a, const State::Slot* b) { return a->turn < b->turn; });
  std::vector<std::string> lines;
  for (const State::Slot* slot : pending) {
    lines.push_back(std::visit(
        [&](const auto& work) {
          return fmt::format("{} {} {}: {}, {}", work.kind, slot->turn, slot->label, work.describe(), slot->under_way ? "under way" : "waiting");
        },
        *slot->work));
  }
  return lines;
}

bool Engine::waiting() const { return state_->main_drives; }

double Engine::bytes_sent() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bytes_sent;
}

double Engine::waited_seconds() const { return state_->waited_seconds; }

}  // namespace trireme::comm
