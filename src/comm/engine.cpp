#include "trireme/comm/engine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine_state.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/hardware.hpp"

namespace trireme::comm {
namespace {

// MPI promises tags up to 32767. The upper half is for messages; in the lower one the requests of a
// group are counted, of which far fewer are under way at once.
constexpr int tags = 1 << 14;

bool any_thread_may_call() {
  int initialized = 0, granted = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  if (initialized != 0) MPI_Query_thread(&granted);
  return granted == MPI_THREAD_MULTIPLE;
}

/// The ranks to speak with; null where there are none: in a group of one, and in one that is not
/// here, which counts what this rank would send.
MpiForm* peers(const Communicator& group, double meta_bytes) {
  auto* ranks = dynamic_cast<MpiForm*>(&group.form());
  if (ranks == nullptr && group.size() > 1) group.form().bytes += meta_bytes;
  return group.size() > 1 ? ranks : nullptr;
}

/// Of what goes round a ring, the bytes that a rank sends.
double ring_bytes(const Communicator& group, std::int64_t bytes) {
  return static_cast<double>(bytes) * (group.size() - 1) / group.size();
}

/// A group's requests are counted, alike on all its ranks: so their messages find each other
/// whenever they are started.
int next_tag(MpiForm& group) { return static_cast<int>(group.engine_requests++ % tags); }

std::int64_t width_of(Wire wire) {
  return wire == Wire::bfloat16 ? sizeof(BFloat16) : sizeof(float);
}

std::size_t scratch_bytes(std::int64_t count, SumOrder order, Wire wire) {
  return wire == Wire::bfloat16 || order == SumOrder::tree
             ? static_cast<std::size_t>(count * width_of(wire))
             : 0;
}

BFloat16* wire_of(void* scratch, Wire wire) {
  return wire == Wire::bfloat16 ? static_cast<BFloat16*>(scratch) : nullptr;
}

Pairs pairs(const Communicator& group) { return {group.rank(), group.size()}; }

/// Collective.
bool have_devices_of_their_own(const Communicator& world, Device device) {
  const std::uint64_t mine = random_key(0, identity_of(device));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) == all.end();
}

}  // namespace

Engine::Engine(Drive drive, std::int64_t longest_call)
    : state_(std::make_unique<State>(any_thread_may_call() ? drive : Drive::polled, longest_call)) {
  if (state_->drive == Drive::thread)
    state_->thread = std::thread([state = state_.get()] { state->run(); });
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

void Engine::serve(const Stream& compute) {
  TRIREME_EXPECT(state_->pending == 0 && state_->staged.empty() && state_->enqueued.empty());
  const std::lock_guard lock(state_->mutex);
  state_->staging.reset();
  state_->nccl.reset();
  for (State::Slot& slot : state_->slots) slot.passed_when.reset();
  if (!in_host_memory(compute.device.kind) && compute.device.kind != DeviceKind::meta)
    state_->staging = std::make_unique<Staging>(compute);
}

Engine::Transport Engine::connect(const Communicator& world, const Connections& connections,
                                  Transport transport) {
  TRIREME_EXPECT(state_->pending == 0 && state_->staged.empty() && state_->enqueued.empty());
  const Device device = state_->staging == nullptr ? Device{} : state_->staging->compute().device;
  const bool possible = world.size() > 1 && device.kind == DeviceKind::cuda && Nccl::built();
  const bool taken =
      transport != Transport::staged && possible && have_devices_of_their_own(world, device);
  ensure(taken || transport != Transport::nccl,
         "NCCL was asked for, which takes a build with CUDA and a GPU of its own for each of "
         "several ranks");
  if (!taken) return Transport::staged;
  {
    const std::lock_guard lock(state_->mutex);
    state_->nccl = std::make_unique<Nccl>(state_->staging->compute());
  }
  together(world, [&] {
    for (const Communicator& group : connections.groups) state_->nccl->connect(group);
    state_->nccl->connect(connections.messages, connections.lanes);
    const std::lock_guard lock(state_->mutex);
    for (State::Slot& slot : state_->slots)
      slot.passed_when.emplace(device);  // now, and not by steps
  });
  std::string& why = state_->why_unregistered;
  together(world, [&] { why = state_->nccl->register_memory(); });
  try {
    together(world, [&] { ensure(why.empty(), "{}", why); });
  } catch (const Failure& failure) {  // of any rank, known to all
    why = failure.what();
    state_->nccl->deregister_memory();
  }
  return Transport::nccl;
}

void Engine::disconnect() {
  if (state_->nccl == nullptr) return;
  try {
    state_->retire_enqueued();
  } catch (const Failure&) {  // of the device: whoever worked with it has met it already
  }
  if (state_->enqueued.empty())
    state_->nccl->deregister_memory();  // else it goes with the communicators
  std::unique_ptr<Nccl> ended;
  const std::lock_guard lock(state_->mutex);
  std::swap(ended, state_->nccl);
}

std::size_t Engine::registered_bytes() const {
  return state_->nccl == nullptr ? 0 : state_->nccl->registered_bytes();
}

const std::string& Engine::why_unregistered() const { return state_->why_unregistered; }

Engine::Ticket Engine::all_reduce(const Communicator& group, float* data, void* scratch,
                                  std::int64_t count, SumOrder order, std::string_view label,
                                  Wire wire) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float),
                    room = scratch_bytes(count, order, wire);
  MpiForm* ranks = peers(group, static_cast<double>(count * width_of(wire)));
  if (ranks == nullptr || count == 0) return 0;  // ticket 0 is done from the start
  TRIREME_EXPECT(room == 0 || scratch != nullptr);
  const auto work_on = [&](float* at, void* between) -> State::Work {
    if (wire == Wire::bfloat16)
      return WiredSum(pairs(group), at, static_cast<BFloat16*>(between), count);
    return AllReduce(pairs(group), at, static_cast<float*>(between), count, order);
  };
  if (Nccl::Channel* channel = state_->channel_of(data, group)) {
    const State::Work work = work_on(data, scratch);
    state_->plan.clear();
    if (order == SumOrder::tree)
      std::visit([&](const auto& steps) { state_->plan.add_steps(steps); }, work);
    else
      state_->plan.library_all_reduce(pairs(group), data, count, wire_of(scratch, wire));
    return state_->ask(*channel, label, work);
  }
  Passage passage = state_->passage_of(data, bytes + room, 2);
  float* const here = passage.place(data, count);
  std::byte* const between = passage.place(static_cast<std::byte*>(scratch), room);
  passage.take_out(here, data, bytes);
  passage.bring_in(data, here, bytes);
  return state_->ask(group, *ranks, next_tag(*ranks), label, work_on(here, between), passage);
}

Engine::Ticket Engine::reduce_scatter(const Communicator& group, float* data, void* scratch,
                                      std::span<const std::int64_t> bounds, float* result,
                                      SumOrder order, std::string_view label, Wire wire) {
  TRIREME_EXPECT(std::ssize(bounds) == group.size() + 1 &&
                 std::is_sorted(bounds.begin(), bounds.end()));
  const std::int64_t count = bounds.back() - bounds.front(),
                     mine = part_of(bounds, group.rank()).size();
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float),
                    room = scratch_bytes(count, order, wire);
  MpiForm* ranks = peers(group, ring_bytes(group, count * width_of(wire)));
  if (group.size() == 1 && data != nullptr)
    copy_bytes(state_->stream_of(data), result, data + bounds.front(), bytes);
  if (ranks == nullptr || count == 0) return 0;
  TRIREME_EXPECT(room == 0 || scratch != nullptr);
  float* const whole = data + bounds.front();
  const auto work_on = [&](float* at, void* between, float* sum) -> State::Work {
    if (wire == Wire::bfloat16)
      return WiredSum(pairs(group), at, static_cast<BFloat16*>(between), bounds, sum);
    return ReduceScatter(pairs(group), at, static_cast<float*>(between), bounds, sum, order);
  };
  if (Nccl::Channel* channel = state_->channel_of(whole, group)) {
    const State::Work work = work_on(whole, scratch, result);
    state_->plan.clear();
    if (order == SumOrder::tree)
      std::visit([&](const auto& steps) { state_->plan.add_steps(steps); }, work);
    else
      state_->plan.library_reduce_scatter(pairs(group), whole, bounds, result,
                                          wire_of(scratch, wire));
    return state_->ask(*channel, label, work);
  }
  const std::size_t mine_bytes = static_cast<std::size_t>(mine) * sizeof(float);
  Passage passage = state_->passage_of(whole, bytes + room + mine_bytes, 3);
  float* const here = passage.place(whole, count);
  float* const sum = passage.place(result, mine);
  std::byte* const between = passage.place(static_cast<std::byte*>(scratch), room);
  passage.take_out(here, whole, bytes);
  passage.bring_in(result, sum, mine_bytes);
  return state_->ask(group, *ranks, next_tag(*ranks), label, work_on(here, between, sum), passage);
}

Engine::Ticket Engine::all_gather(const Communicator& group, std::byte* data,
                                  std::span<const std::int64_t> bounds, std::string_view label) {
  TRIREME_EXPECT(std::ssize(bounds) == group.size() + 1 &&
                 std::is_sorted(bounds.begin(), bounds.end()));
  const std::int64_t bytes = bounds.back() - bounds.front();
  MpiForm* ranks = peers(group, ring_bytes(group, bytes));
  if (ranks == nullptr || bytes == 0) return 0;
  std::byte* const whole = data + bounds.front();
  if (Nccl::Channel* channel = state_->channel_of(whole, group)) {
    state_->plan.clear();
    state_->plan.library_all_gather(pairs(group), whole, bounds);
    return state_->ask(*channel, label, AllGather(pairs(group), whole, bounds));
  }
  Passage passage = state_->passage_of(whole, static_cast<std::size_t>(bytes), 1);
  std::byte* const here = passage.place(whole, static_cast<std::size_t>(bytes));
  const Range mine = part_of(bounds, group.rank());
  passage.take_out(here + mine.begin, whole + mine.begin, static_cast<std::size_t>(mine.size()));
  passage.bring_in(whole, here, static_cast<std::size_t>(mine.begin));
  passage.bring_in(whole + mine.end, here + mine.end, static_cast<std::size_t>(bytes - mine.end));
  return state_->ask(group, *ranks, next_tag(*ranks), label, AllGather(pairs(group), here, bounds),
                     passage);
}

Engine::Ticket Engine::send(const Communicator& group, std::span<const std::byte> data, int to,
                            int tag, std::string_view label) {
  TRIREME_EXPECT(0 <= to && to < group.size() && to != group.rank() && 0 <= tag && tag < tags);
  MpiForm* ranks = peers(group, static_cast<double>(data.size()));
  if (ranks == nullptr || data.empty()) return 0;
  if (Nccl::Channel* channel = state_->channel_of(data.data(), group, group.rank(), to, tag)) {
    state_->plan.clear();
    state_->plan.send(data, 1);
    state_->plan.end();
    return state_->ask(*channel, label, Send(data, to, tag));
  }
  Passage passage = state_->passage_of(data.data(), data.size(), 1);
  std::byte* const here =
      passage.place(const_cast<std::byte*>(data.data()), data.size());  // is not written
  passage.take_out(here, data.data(), data.size());
  return state_->ask(group, *ranks, tags + tag, label, Send({here, data.size()}, to, tag), passage);
}

Engine::Ticket Engine::receive(const Communicator& group, std::span<std::byte> data, int from,
                               int tag, std::string_view label) {
  TRIREME_EXPECT(0 <= from && from < group.size() && from != group.rank() && 0 <= tag &&
                 tag < tags);
  MpiForm* ranks = peers(group, 0);
  if (ranks == nullptr || data.empty()) return 0;
  if (Nccl::Channel* channel = state_->channel_of(data.data(), group, from, group.rank(), tag)) {
    state_->plan.clear();
    state_->plan.receive(data, 0);
    state_->plan.end();
    return state_->ask(*channel, label, Receive(data, from, tag));
  }
  Passage passage = state_->passage_of(data.data(), data.size(), 1);
  std::byte* const here = passage.place(data.data(), data.size());
  passage.bring_in(data.data(), here, data.size());
  return state_->ask(group, *ranks, tags + tag, label, Receive({here, data.size()}, from, tag),
                     passage);
}

void Engine::progress() { state_->progress(); }

void Engine::wait(Ticket ticket) { state_->wait(ticket); }

void Engine::quiesce() { state_->quiesce(); }

Engine::Drive Engine::drive() const { return state_->drive; }

std::vector<std::string> Engine::describe() const {
  const std::lock_guard lock(
      state_->mutex);  // no request ends meanwhile, and its slot is not given to another
  if (state_->nccl != nullptr) state_->staging->enter();
  std::vector<const State::Slot*> pending;
  for (const State::Slot& slot : state_->slots) {
    const bool passed = slot.by_nccl && slot.under_way && slot.passed_when->is_done();
    if (slot.ticket != 0 && !slot.arrived && !passed) pending.push_back(&slot);
  }
  std::sort(pending.begin(), pending.end(),
            [](const State::Slot* a, const State::Slot* b) { return a->turn < b->turn; });
  std::vector<std::string> lines;
  for (const State::Slot* slot : pending) {
    lines.push_back(std::visit(
        [&](const auto& work) {
          return fmt::format("{} {} {}: {}, {}", work.kind, slot->turn, slot->label,
                             work.describe(), slot->under_way ? "under way" : "waiting");
        },
        *slot->work));
  }
  return lines;
}

void Engine::keep_spans(bool keep) {
  const std::lock_guard lock(state_->mutex);
  state_->spans_kept = keep;
}

std::vector<Engine::Span> Engine::take_spans() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->spans, {});
}

bool Engine::waiting() const { return state_->main_drives; }

double Engine::bytes_sent() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bytes_sent;
}

double Engine::waited_seconds() const { return state_->waited_seconds; }

std::size_t Engine::staging_bytes() const {
  return state_->staging == nullptr ? 0 : state_->staging->bytes();
}

}  // namespace trireme::comm
