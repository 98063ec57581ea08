#include "engine_state.hpp"

#include <algorithm>
#include <chrono>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/launch.hpp"

namespace trireme::comm {
namespace {

// Sums and gathers of one group that are under way at once; later ones wait their turn.
constexpr int window = 8;
// Requests that a step asks for before it waits are mostly fewer; more of them take memory once.
constexpr std::size_t usual_requests = 256;
constexpr std::size_t usual_groups = 16;
// The number of a slot within a ticket.
constexpr int slot_bits = 20;

/// Between two looks at what is under way: gives the core away at once, and sleeps when it takes
/// longer, for a few percent of the time waited so far: many ranks on few cores leave them to those
/// that have work.
void pause(int idle) {
  constexpr int yields = 64, longest_us = 1000;
  if (idle < yields)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::min(20 + 4 * (idle - yields), longest_us)));
}

}  // namespace

Engine::State::State(Drive drive_in, std::int64_t longest_in)
    : drive(drive_in), longest(longest_in) {
  while (slots.size() < usual_requests) free.push(slots.emplace_back(slots.size()));
  under_way.reserve(usual_requests);
  staged.reserve(usual_requests);
  enqueued.reserve(usual_requests);
  to_start.reserve(usual_groups);
}

Engine::State::Slot& Engine::State::take_slot() {
  const std::lock_guard lock(mutex);
  if (free.empty()) free.push(slots.emplace_back(slots.size()));
  return free.pop();
}

Engine::State::Group& Engine::State::group_of(const Communicator& ranks, MpiForm& form) {
  const auto known = std::find_if(groups.begin(), groups.end(),
                                  [&](const Group& group) { return group.form == &form; });
  return known != groups.end() ? *known : groups.emplace_back(Group{ranks, &form, {}, {}, 0});
}

Stream Engine::State::stream_of(const void* place) const {
  const Device device = device_of(place);
  if (in_host_memory(device.kind)) return {};
  TRIREME_EXPECT(staging != nullptr && device == staging->compute().device);
  return staging->compute();
}

Passage Engine::State::passage_of(const void* place, std::size_t bytes, std::size_t parts) {
  if (in_host_memory(stream_of(place).device.kind)) return {};
  return {*staging, bytes + parts * Passage::alignment};
}

Engine::Ticket Engine::State::ask(const Communicator& ranks, MpiForm& form, int tag,
                                  std::string_view label, const Work& work,
                                  const Passage& passage) {
  Slot& slot = take_slot();
  slot.turn = ++requests;
  slot.work = work;
  slot.by_nccl = false;
  slot.passage = passage;
  slot.label = label;
  slot.group = &group_of(ranks, form);
  slot.in_order = !std::holds_alternative<Send>(work) && !std::holds_alternative<Receive>(work);
  slot.tag = tag;
  slot.under_way = false;
  slot.arrived = false;
  slot.passage.depart();
  if (passage.staged()) staged.push_back(&slot);
  const Ticket ticket = ++slot.uses << slot_bits | slot.number;
  {
    const std::lock_guard lock(mutex);
    slot.ticket = ticket;
    coming.push(slot);
    ++pending;
  }
  if (drive == Drive::thread)
    wake.notify_one();
  else
    drive_once();
  return ticket;
}

Nccl::Channel* Engine::State::channel_of(const void* place, const Communicator& group) const {
  return nccl == nullptr || in_host_memory(device_of(place).kind) ? nullptr
                                                                  : nccl->channel_of(group);
}

Nccl::Channel* Engine::State::channel_of(const void* place, const Communicator& group, int from,
                                         int to, int tag) const {
  return nccl == nullptr || in_host_memory(device_of(place).kind)
             ? nullptr
             : nccl->channel_of(group, from, to, tag);
}

Engine::Ticket Engine::State::ask(Nccl::Channel& channel, std::string_view label,
                                  const Work& work) {
  retire_enqueued();
  Slot& slot = take_slot();
  slot.turn = ++requests;
  slot.work = work;
  slot.by_nccl = true;
  slot.passage = {};
  slot.label = label;
  slot.bytes_by_nccl = plan.bytes_sent();
  slot.under_way = false;
  slot.arrived = false;
  if (!slot.passed_when) slot.passed_when.emplace(nccl->compute().device);
  const Ticket ticket = ++slot.uses << slot_bits | slot.number;
  {
    const std::lock_guard lock(mutex);
    slot.ticket = ticket;  // from here on describe() shows it, should NCCL stand still
  }
  enqueued.push_back(&slot);
  nccl->enqueue(channel, plan, *slot.passed_when);
  slot.under_way = true;
  return ticket;
}

void Engine::State::retire_enqueued() {
  std::erase_if(enqueued, [&](Slot* slot) {
    if (!slot->passed_when->is_done()) return false;
    {
      const std::lock_guard lock(mutex);
      bytes_sent += slot->bytes_by_nccl;
    }
    free_slot(*slot);
    return true;
  });
}

void Engine::State::progress() {
  if (nccl != nullptr) {
    nccl->check();
    retire_enqueued();
  }
  if (drive == Drive::polled) drive_once();
}

/// One look at all that is under way; true where something ended. By the holder of `driving`, or
/// where there is no other thread.
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
    Group& group = *slot.group;
    if (std::holds_alternative<Receive>(*slot.work)) {
      begin(slot);
      continue;
    }
    if (group.sums.empty() && group.sends.empty()) to_start.push_back(&group);
    (slot.in_order ? group.sums : group.sends).push(slot);
  }
  start();
  List done;
  std::erase_if(under_way, [&](Slot* slot) {
    const bool ended = advance(*slot);
    if (ended) done.push(*slot);
    return ended;
  });
  if (done.empty()) return false;
  for (Slot* slot = done.first; slot != nullptr; slot = slot->next)
    slot->group->under_way -= slot->in_order;
  retire(done);
  start();
  return true;
}

/// What is on its way from a device holds back what its group was asked for later, also on host
/// memory: MPI matches a group's sums, and messages of one tag, by the order of the calls.
void Engine::State::start() {
  std::erase_if(to_start, [&](Group* group) {
    while (!group->sums.empty() && group->under_way < window && group->sums.first->passage.ready())
      begin(group->sums.pop());
    while (!group->sends.empty() && group->sends.first->passage.ready()) begin(group->sends.pop());
    return group->sums.empty() && group->sends.empty();
  });
}

void Engine::State::begin(Slot& slot) {
  under_way.push_back(&slot);
  slot.under_way = true;
  slot.begun = monotonic_seconds();
  slot.group->under_way += slot.in_order;
  slot.calls.begin(*slot.group->form, slot.tag, longest);
  slot.step = 0;
  slot.steps = std::visit([](const auto& work) { return work.steps(); }, *slot.work);
  std::visit([&](const auto& work) { work.post(slot.calls, 0); }, *slot.work);
}

/// Goes on where a step has ended; true when all is done.
bool Engine::State::advance(Slot& slot) {
  while (slot.calls.ended()) {
    std::visit([&](const auto& work) { work.complete(slot.calls, slot.step); }, *slot.work);
    if (++slot.step == slot.steps) {
      slot.passage.arrive();
      return true;
    }
    std::visit([&](const auto& work) { work.post(slot.calls, slot.step); }, *slot.work);
  }
  return false;
}

void Engine::State::retire(List done) {
  const std::lock_guard lock(mutex);
  while (!done.empty()) {
    Slot& slot = done.pop();
    bytes_sent += slot.calls.bytes_sent();
    if (spans_kept) spans.push_back({slot.label, slot.begun, monotonic_seconds()});
    if (slot.passage.staged()) {
      slot.arrived = true;
    } else {
      slot.ticket = 0;
      free.push(slot);
    }
    --pending;
  }
}

void Engine::State::join(Slot& slot) {
  slot.passage.join();
  free_slot(slot);
}

void Engine::State::free_slot(Slot& slot) {
  const std::lock_guard lock(mutex);
  slot.ticket = 0;
  free.push(slot);
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
      if (drive_once())
        idle = 0;
      else
        ++idle;
    } catch (...) {
      return;  // kept in `error`: the main thread meets it when it waits
    }
    if (idle > 0) pause(idle);
  }
}

/// The main thread drives until done(): it would have nothing else to do, and a thread that had to
/// be woken up costs time.
template <class Done>
void Engine::State::wait_until(Done&& done) {
  if (done()) return;
  const double begin = monotonic_seconds();
  main_drives = true;
  {
    const std::lock_guard driver(driving);
    for (int idle = 0; !done();) {
      if (drive_once())
        idle = 0;
      else
        pause(idle++);
    }
  }
  {
    const std::lock_guard lock(mutex);
    main_drives = false;
  }
  wake.notify_one();
  waited_seconds += monotonic_seconds() - begin;
}

void Engine::State::wait(Ticket ticket) {
  Slot& slot = slots[ticket & ((Ticket{1} << slot_bits) - 1)];
  if (ticket != 0 && slot.ticket == ticket && slot.by_nccl) {
    nccl->check();
    slot.passed_when->delay(nccl->compute());
    return retire_enqueued();
  }
  // What the compute stream was asked for behind the request is worked on while the host waits.
  if (staging != nullptr && staging->compute().graphs != nullptr)
    staging->compute().graphs->flush();
  wait_until([&] { return ticket == 0 || slot.ticket != ticket || slot.arrived; });
  if (ticket == 0 || slot.ticket != ticket) return;
  std::erase(staged, &slot);
  join(slot);
}

void Engine::State::quiesce() {
  wait_until([&] { return pending == 0; });
  for (int idle = 0; !enqueued.empty(); pause(idle++)) {
    nccl->check();
    retire_enqueued();
  }
  for (Slot* slot : staged) join(*slot);
  staged.clear();
}

}  // namespace trireme::comm
