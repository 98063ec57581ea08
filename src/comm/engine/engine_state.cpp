// SPDX-License-Identifier: Apache-2.0
//
// Runs the requests of Engine: submit() -> make_progress(), again and again -> wait().
//
// The progress loop, one poll of all requests (make_progress and the functions that it calls):
// 1. Take the newly submitted requests. Receives start at once; the others queue in their group.
// 2. Start queued requests whose memory is ready: sums and gathers of a group in order, 8 at most.
// 3. Poll each request under way; when the calls of a step have ended, complete it and post the
//    next.
// 4. Retire finished requests, and start requests that queued behind them.
//
// The loop is called by run() (engine thread), wait_until() (main thread in wait() and quiesce()),
// and without an engine thread also by submit() and progress(). NCCL requests do not need the loop.

#include "engine_state.hpp"

#include <algorithm>
#include <chrono>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/launch.hpp"

namespace trireme::comm {
namespace {

// Maximum number of sums and gathers of one group under way at once; later ones queue.
constexpr int max_started_collectives = 8;
// Initial capacities. A step submits mostly fewer requests before it waits; more grow the lists
// once.
constexpr std::size_t initial_slots = 256;
constexpr std::size_t initial_groups = 16;
// Low bits of a request that hold the index of its slot.
constexpr int slot_bits = 20;

/// Pauses between two polls. The first 64 pauses yield the core; later ones sleep 20 us to 1 ms, a
/// few percent of the time waited so far. So many ranks on few cores leave the cores to those that
/// compute.
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

/// Fills a free slot with a new request.
Engine::State::RequestSlot& Engine::State::fill_slot(Group& group, const Purpose& purpose,
                                                     const Work& work,
                                                     const StagingCopy& staging_copy) {
  RequestSlot& slot = take_slot();
  slot.sequence_number = ++num_submitted;
  slot.work = work;
  slot.staging_copy = staging_copy;
  slot.purpose = purpose;
  slot.group = &group;
  slot.under_way = false;
  slot.copy_back_enqueued = false;
  return slot;
}

Engine::State::Group& Engine::State::group_of(const Communicator& ranks,
                                              MpiCommunicator& implementation) {
  const auto known = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
    return group.implementation == &implementation;
  });
  return known != groups.end() ? *known
                               : groups.emplace_back(Group{ranks, &implementation, {}, {}, 0});
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

Engine::Request Engine::State::submit(const Communicator& ranks, MpiCommunicator& implementation,
                                      int tag, const Purpose& purpose, const Work& work,
                                      const StagingCopy& staging_copy) {
  // 1. Fill a free slot.
  RequestSlot& slot = fill_slot(group_of(ranks, implementation), purpose, work, staging_copy);
  slot.by_nccl = false;
  slot.is_collective =
      !std::holds_alternative<Send>(work) && !std::holds_alternative<Receive>(work);
  slot.tag = tag;
  // 2. Enqueue the copy to host memory behind the work of the compute stream.
  slot.staging_copy.enqueue_copy_out();
  if (staging_copy.staged()) staged.push_back(&slot);
  // 3. Publish the request to the thread that polls.
  const Request request = ++slot.uses << slot_bits | slot.number;
  {
    const std::lock_guard lock(mutex);
    slot.request = request;
    submitted.push(slot);
    ++pending;
  }
  // 4. Wake the engine's thread, or poll now.
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

Engine::Request Engine::State::submit(Nccl::Channel& channel, const Communicator& ranks,
                                      MpiCommunicator& implementation, const Purpose& purpose,
                                      const Work& work) {
  retire_enqueued();
  RequestSlot& slot = fill_slot(group_of(ranks, implementation), purpose, work, {});
  slot.by_nccl = true;
  slot.nccl_bytes_sent = call_list.bytes_sent();
  if (!slot.nccl_done) slot.nccl_done.emplace(nccl->compute().device);
  const Request request = ++slot.uses << slot_bits | slot.number;
  {
    const std::lock_guard lock(mutex);
    // describe() lists it from here on, so that a hang inside NCCL is visible.
    slot.request = request;
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

/// Polls all requests once; returns whether one finished. The caller holds `progress_mutex`, or
/// there is no engine thread. Rethrows the first error of any earlier poll.
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

/// One iteration of the progress loop, steps 1 to 4 of the head of this file.
bool Engine::State::advance() {
  // 1. Take the newly submitted requests.
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
  // 2. Start the requests that are ready.
  start_waiting();
  // 3. Poll each request under way.
  List done;
  std::erase_if(under_way, [&](RequestSlot* slot) {
    const bool ended = advance(*slot);
    if (ended) done.push(*slot);
    return ended;
  });
  // 4. Retire the finished requests, and start those that queued behind them.
  if (done.empty()) return false;
  for (RequestSlot* slot = done.first; slot != nullptr; slot = slot->next)
    slot->group->started_collectives -= slot->is_collective;
  retire(done);
  start_waiting();
  return true;
}

/// Starts queued requests. One that waits for its copy from the device delays later ones of its
/// group, also those on host memory: MPI matches sums, and messages with the same tag, in the order
/// of the calls.
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

/// Starts a request: posts the calls of its first step.
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

/// Completes the steps whose calls have ended and posts the next ones. Returns whether the request
/// is done.
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

/// Frees the slots of finished requests. Staged ones keep their slot and memory until wait().
void Engine::State::retire(List done) {
  const std::lock_guard lock(mutex);
  while (!done.empty()) {
    RequestSlot& slot = done.pop();
    bytes_sent += slot.calls.bytes_sent();
    if (records_spans)
      spans.push_back(
          {slot.purpose, slot.group->ranks.name(), slot.begin_seconds, monotonic_seconds(), false});
    if (slot.staging_copy.staged()) {
      slot.copy_back_enqueued = true;
    } else {
      slot.request = 0;
      free.push(slot);
    }
    --pending;
  }
}

/// Finishes a staged request: delays the compute stream until the copy back is done, then frees the
/// slot.
void Engine::State::finish_staged(RequestSlot& slot) {
  slot.staging_copy.finish();
  free_slot(slot);
}

void Engine::State::free_slot(RequestSlot& slot) {
  const std::lock_guard lock(mutex);
  slot.request = 0;
  free.push(slot);
}

/// The loop of the engine's thread:
/// 1. Sleep until a request is pending and the main thread does not poll itself.
/// 2. Poll all requests once, under `progress_mutex`.
/// 3. Pause if none finished; the longer nothing happens, the longer the pause.
void Engine::State::run() {
  for (int idle = 0;;) {
    {
      // 1. Sleep until there is work.
      std::unique_lock lock(mutex);
      if (pending == 0) idle = 0;
      wake.wait(lock, [&] { return stopping || (pending > 0 && !main_is_waiting); });
      if (stopping) return;
    }
    // 2. Poll.
    try {
      const std::lock_guard driver(progress_mutex);
      if (make_progress())
        idle = 0;
      else
        ++idle;
    } catch (...) {
      // The main thread rethrows `error` when it waits.
      return;
    }
    // 3. Pause.
    if (idle > 0) pause(idle);
  }
}

/// Notes for current_wait() that the main thread waits, from construction to destruction.
class Engine::State::WaitNote {
 public:
  /// `begin`: the time now; 0: nothing to wait for.
  WaitNote(State& state, Request request, double begin) : state_(state) {
    state_.waited_request = request;
    state_.wait_begin = begin;
  }
  ~WaitNote() { state_.wait_begin = 0; }
  WaitNote(const WaitNote&) = delete;
  WaitNote& operator=(const WaitNote&) = delete;

 private:
  State& state_;
};

/// Polls on the main thread until done(): it has nothing else to do, and waking the engine's thread
/// takes time. The engine's thread sleeps meanwhile.
template <class Done>
void Engine::State::wait_until(Request request, Purpose purpose, Done&& done) {
  if (done()) return;
  const double begin = monotonic_seconds();
  const WaitNote note(*this, request, begin);
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
  const double end = monotonic_seconds();
  {
    const std::lock_guard lock(mutex);
    main_is_waiting = false;
    if (records_spans) spans.push_back({purpose, {}, begin, end, true});
  }
  wake.notify_one();
  waited_seconds += end - begin;
}

void Engine::State::wait(Request request) {
  RequestSlot& slot = slots[request & ((Request{1} << slot_bits) - 1)];
  // NCCL: only the compute stream waits.
  if (request != 0 && slot.request == request && slot.by_nccl) {
    nccl->check();
    slot.nccl_done->delay(nccl->compute());
    return retire_enqueued();
  }
  // Launch the kernels that were submitted behind the request, so that the device works while the
  // host waits.
  if (staging != nullptr && staging->compute().graphs != nullptr)
    staging->compute().graphs->flush();
  wait_until(request, slot.purpose,
             [&] { return request == 0 || slot.request != request || slot.copy_back_enqueued; });
  if (request == 0 || slot.request != request) return;
  // Staged: the compute stream waits for the copy back.
  std::erase(staged, &slot);
  finish_staged(slot);
}

void Engine::State::quiesce() {
  // 1. MPI requests.
  wait_until(0, "trireme/comm/quiesce", [&] { return pending == 0; });
  // 2. NCCL requests.
  const WaitNote note(*this, 0, enqueued.empty() ? 0 : monotonic_seconds());
  for (int idle = 0; !enqueued.empty(); pause(idle++)) {
    nccl->check();
    retire_enqueued();
  }
  // 3. Staged memory: the compute stream waits for the copies back.
  for (RequestSlot* slot : staged) finish_staged(*slot);
  staged.clear();
}

}  // namespace trireme::comm
