#include "engine_state.hpp"

#include <algorithm>
#include <chrono>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/launch.hpp"

namespace trireme::comm {
namespace {

// Sums and gathers of one group that are under way at once; later ones wait their turn.
constexpr int max_started_collectives = 8;
// Requests that a step asks for before it waits are mostly fewer; more of them take memory once.
constexpr std::size_t initial_slots = 256;
constexpr std::size_t initial_groups = 16;
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

Engine::State::State(ProgressMode progress_mode_in, std::int64_t max_call_count_in)
    : progress_mode(progress_mode_in), max_call_count(max_call_count_in) {
  while (slots.size() < initial_slots) free.push(slots.emplace_back(slots.size()));
  under_way.reserve(initial_slots);
  staged.reserve(initial_slots);
  enqueued.reserve(initial_slots);
  groups_to_start.reserve(initial_groups);
}

Engine::State::RequestSlot& Engine::State::take_slot() {
  const std::lock_guard lock(mutex);
  if (free.empty()) free.push(slots.emplace_back(slots.size()));
  return free.pop();
}

Engine::State::Group& Engine::State::group_of(const Communicator& ranks, MpiCommunicator& form) {
  const auto known = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
    return group.implementation == &form;
  });
  return known != groups.end() ? *known : groups.emplace_back(Group{ranks, &form, {}, {}, 0});
}

Stream Engine::State::stream_of(const void* place) const {
  const Device device = device_of(place);
  if (in_host_memory(device.kind)) return {};
  TRIREME_EXPECT(staging != nullptr && device == staging->compute().device);
  return staging->compute();
}

StagingCopy Engine::State::staging_for(const void* place, std::size_t bytes, std::size_t parts) {
  if (in_host_memory(stream_of(place).device.kind)) return {};
  return {*staging, bytes + parts * StagingCopy::alignment};
}

Engine::Request Engine::State::submit(const Communicator& ranks, MpiCommunicator& form, int tag,
                                      std::string_view label, const Work& work,
                                      const StagingCopy& staging_copy) {
  RequestSlot& slot = take_slot();
  slot.sequence_number = ++num_submitted;
  slot.work = work;
  slot.by_nccl = false;
  slot.staging_copy = staging_copy;
  slot.label = label;
  slot.group = &group_of(ranks, form);
  slot.is_collective =
      !std::holds_alternative<Send>(work) && !std::holds_alternative<Receive>(work);
  slot.tag = tag;
  slot.under_way = false;
  slot.copy_back_enqueued = false;
  slot.staging_copy.enqueue_copy_out();
  if (staging_copy.staged()) staged.push_back(&slot);
  const Request request = ++slot.uses << slot_bits | slot.number;
  {
    const std::lock_guard lock(mutex);
    slot.request = request;
    submitted.push(slot);
    ++pending;
  }
  if (progress_mode == ProgressMode::thread)
    wake.notify_one();
  else
    make_progress();
  return request;
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

Engine::Request Engine::State::submit(Nccl::Channel& channel, std::string_view label,
                                      const Work& work) {
  retire_enqueued();
  RequestSlot& slot = take_slot();
  slot.sequence_number = ++num_submitted;
  slot.work = work;
  slot.by_nccl = true;
  slot.staging_copy = {};
  slot.label = label;
  slot.nccl_bytes_sent = call_list.bytes_sent();
  slot.under_way = false;
  slot.copy_back_enqueued = false;
  if (!slot.nccl_done) slot.nccl_done.emplace(nccl->compute().device);
  const Request request = ++slot.uses << slot_bits | slot.number;
  {
    const std::lock_guard lock(mutex);
    slot.request = request;  // from here on describe() shows it, should NCCL stand still
  }
  enqueued.push_back(&slot);
  nccl->enqueue(channel, call_list, *slot.nccl_done);
  slot.under_way = true;
  return request;
}

void Engine::State::retire_enqueued() {
  std::erase_if(enqueued, [&](RequestSlot* slot) {
    if (!slot->nccl_done->is_done()) return false;
    {
      const std::lock_guard lock(mutex);
      bytes_sent += slot->nccl_bytes_sent;
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
  if (progress_mode == ProgressMode::polled) make_progress();
}

/// One look at all that is under way; true where something ended. By the holder of `driving`, or
/// where there is no other thread.
bool Engine::State::make_progress() {
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
    std::swap(newest, submitted);
  }
  while (!newest.empty()) {
    RequestSlot& slot = newest.pop();
    Group& group = *slot.group;
    if (std::holds_alternative<Receive>(*slot.work)) {
      begin(slot);
      continue;
    }
    if (group.waiting_collectives.empty() && group.waiting_sends.empty())
      groups_to_start.push_back(&group);
    (slot.is_collective ? group.waiting_collectives : group.waiting_sends).push(slot);
  }
  start_waiting();
  List done;
  std::erase_if(under_way, [&](RequestSlot* slot) {
    const bool ended = advance(*slot);
    if (ended) done.push(*slot);
    return ended;
  });
  if (done.empty()) return false;
  for (RequestSlot* slot = done.first; slot != nullptr; slot = slot->next)
    slot->group->started_collectives -= slot->is_collective;
  retire(done);
  start_waiting();
  return true;
}

/// What is on its way from a device holds back what its group was asked for later, also on host
/// memory: MPI matches a group's sums, and messages of one tag, by the order of the calls.
void Engine::State::start_waiting() {
  std::erase_if(groups_to_start, [&](Group* group) {
    while (!group->waiting_collectives.empty() &&
           group->started_collectives < max_started_collectives &&
           group->waiting_collectives.first->staging_copy.is_ready())
      begin(group->waiting_collectives.pop());
    while (!group->waiting_sends.empty() && group->waiting_sends.first->staging_copy.is_ready())
      begin(group->waiting_sends.pop());
    return group->waiting_collectives.empty() && group->waiting_sends.empty();
  });
}

void Engine::State::begin(RequestSlot& slot) {
  under_way.push_back(&slot);
  slot.under_way = true;
  slot.begin_seconds = monotonic_seconds();
  slot.group->started_collectives += slot.is_collective;
  slot.calls.begin(*slot.group->implementation, slot.tag, max_call_count);
  slot.step = 0;
  slot.steps = std::visit([](const auto& work) { return work.steps(); }, *slot.work);
  std::visit([&](const auto& work) { work.post(slot.calls, 0); }, *slot.work);
}

/// Goes on where a step has ended; true when all is done.
bool Engine::State::advance(RequestSlot& slot) {
  while (slot.calls.all_done()) {
    std::visit([&](const auto& work) { work.complete(slot.calls, slot.step); }, *slot.work);
    if (++slot.step == slot.steps) {
      slot.staging_copy.enqueue_copy_in();
      return true;
    }
    std::visit([&](const auto& work) { work.post(slot.calls, slot.step); }, *slot.work);
  }
  return false;
}

void Engine::State::retire(List done) {
  const std::lock_guard lock(mutex);
  while (!done.empty()) {
    RequestSlot& slot = done.pop();
    bytes_sent += slot.calls.bytes_sent();
    if (records_spans) spans.push_back({slot.label, slot.begin_seconds, monotonic_seconds()});
    if (slot.staging_copy.staged()) {
      slot.copy_back_enqueued = true;
    } else {
      slot.request = 0;
      free.push(slot);
    }
    --pending;
  }
}

void Engine::State::finish_staged(RequestSlot& slot) {
  slot.staging_copy.finish();
  free_slot(slot);
}

void Engine::State::free_slot(RequestSlot& slot) {
  const std::lock_guard lock(mutex);
  slot.request = 0;
  free.push(slot);
}

void Engine::State::run() {
  for (int idle = 0;;) {
    {
      std::unique_lock lock(mutex);
      if (pending == 0) idle = 0;
      wake.wait(lock, [&] { return stopping || (pending > 0 && !main_is_waiting); });
      if (stopping) return;
    }
    try {
      const std::lock_guard driver(progress_mutex);
      if (make_progress())
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
  main_is_waiting = true;
  {
    const std::lock_guard driver(progress_mutex);
    for (int idle = 0; !done();) {
      if (make_progress())
        idle = 0;
      else
        pause(idle++);
    }
  }
  {
    const std::lock_guard lock(mutex);
    main_is_waiting = false;
  }
  wake.notify_one();
  waited_seconds += monotonic_seconds() - begin;
}

void Engine::State::wait(Request request) {
  RequestSlot& slot = slots[request & ((Request{1} << slot_bits) - 1)];
  if (request != 0 && slot.request == request && slot.by_nccl) {
    nccl->check();
    slot.nccl_done->delay(nccl->compute());
    return retire_enqueued();
  }
  // What the compute stream was asked for behind the request is worked on while the host waits.
  if (staging != nullptr && staging->compute().graphs != nullptr)
    staging->compute().graphs->flush();
  wait_until([&] { return request == 0 || slot.request != request || slot.copy_back_enqueued; });
  if (request == 0 || slot.request != request) return;
  std::erase(staged, &slot);
  finish_staged(slot);
}

void Engine::State::quiesce() {
  wait_until([&] { return pending == 0; });
  for (int idle = 0; !enqueued.empty(); pause(idle++)) {
    nccl->check();
    retire_enqueued();
  }
  for (RequestSlot* slot : staged) finish_staged(*slot);
  staged.clear();
}

}  // namespace trireme::comm
