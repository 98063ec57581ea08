// SPDX-License-Identifier: Apache-2.0
//
// The public half of Engine: turns each call into a request. engine_state.cpp runs the requests.
//
// all_reduce, reduce_scatter, all_gather, send and receive do the same in this order:
// 1. Find the MPI communicator of the group; a group of one or a meta group returns request 0.
// 2. NCCL has a channel for this memory and group: build the list of calls and submit it to the
//    channel.
// 3. Otherwise map device memory to pinned host memory (StagingCopy; host memory maps to itself).
// 4. Submit the same work on the mapped memory to MPI.
//
// Called by the main thread: ParameterStore, GradientReducer, TensorGroup, PeriodicAverage, and
// train.

#include "trireme/comm/engine/engine.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine_state.hpp"
#include "sent_bytes.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/hardware.hpp"

namespace trireme::comm {
namespace {

// MPI guarantees tags up to 32767. Messages use the upper half. Sums and gathers of a group number
// their tags in the lower half and wrap around; far fewer of them are under way at once.
constexpr int num_tags = 1 << 14;

bool any_thread_may_call() {
  int initialized = 0, granted = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  if (initialized != 0) MPI_Query_thread(&granted);
  return granted == MPI_THREAD_MULTIPLE;
}

/// Returns the communicator of the group over MPI; null for a group of one and for a meta group.
/// Adds `meta_bytes` to the bytes of a meta group.
MpiCommunicator* mpi_communicator_of(const Communicator& group, double meta_bytes) {
  auto* implementation = dynamic_cast<MpiCommunicator*>(&group.implementation());
  if (implementation == nullptr && group.size() > 1) group.implementation().bytes += meta_bytes;
  return group.size() > 1 ? implementation : nullptr;
}

/// Returns the tag of the next sum or gather of a group. All ranks submit them in the same order,
/// so the tags match on all ranks.
int next_tag(MpiCommunicator& group) {
  return static_cast<int>(group.engine_requests++ % num_tags);
}

std::size_t scratch_bytes(std::int64_t count, SumOrder order, TransferType transfer_type) {
  return transfer_type == TransferType::bfloat16 || order == SumOrder::tree
             ? static_cast<std::size_t>(count * element_bytes(transfer_type))
             : 0;
}

/// Returns the scratch memory as bfloat16; null if the sum is sent as float32.
BFloat16* bfloat16_scratch(void* scratch, TransferType transfer_type) {
  return transfer_type == TransferType::bfloat16 ? static_cast<BFloat16*>(scratch) : nullptr;
}

/// Returns a number that differs, most likely, if any part has another size.
std::uint64_t hash_of_parts(std::span<const std::int64_t> bounds) {
  std::uint64_t hash = bounds.size();
  for (const std::int64_t bound : bounds)
    hash = mix64(hash ^ static_cast<std::uint64_t>(bound - bounds.front()));
  return hash;
}

/// Returns whether every rank has a device of its own. Collective.
bool every_rank_has_own_device(const Communicator& world, Device device) {
  const std::uint64_t mine = random_key(0, identity_of(device));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) == all.end();
}

}  // namespace

Engine::Engine(ProgressMode progress_mode, std::int64_t max_call_count)
    : state_(std::make_unique<State>(any_thread_may_call() ? progress_mode : ProgressMode::polled,
                                     max_call_count)) {
  if (state_->progress_mode == ProgressMode::thread)
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

void Engine::attach_device(const Stream& compute) {
  TRIREME_EXPECT(state_->pending == 0 && state_->staged.empty() && state_->enqueued.empty());
  const std::lock_guard lock(state_->mutex);
  state_->staging.reset();
  state_->nccl.reset();
  for (State::RequestSlot& slot : state_->slots) slot.nccl_done.reset();
  if (!in_host_memory(compute.device.kind) && compute.device.kind != DeviceKind::meta)
    state_->staging = std::make_unique<Staging>(compute);
}

Engine::Transport Engine::connect(const Communicator& world, const Connections& connections,
                                  Transport transport) {
  TRIREME_EXPECT(state_->pending == 0 && state_->staged.empty() && state_->enqueued.empty());
  // 1. Choose the transport, alike on all ranks.
  const Device device = state_->staging == nullptr ? Device{} : state_->staging->compute().device;
  const bool possible = world.size() > 1 && device.kind == DeviceKind::cuda && Nccl::built();
  const bool taken =
      transport != Transport::staged && possible && every_rank_has_own_device(world, device);
  ensure(taken || transport != Transport::nccl,
         "NCCL was requested but cannot be used: it needs a build with CUDA, several ranks, and "
         "a GPU for each rank");
  if (!taken) return Transport::staged;
  {
    const std::lock_guard lock(state_->mutex);
    state_->nccl = std::make_unique<Nccl>(state_->staging->compute());
  }
  // 2. Create a communicator for each group and route, and the events of the existing slots now.
  together(world, [&] {
    for (const Communicator& group : connections.groups) state_->nccl->connect(group);
    state_->nccl->connect(connections.messages, connections.routes);
    const std::lock_guard lock(state_->mutex);
    for (State::RequestSlot& slot : state_->slots) slot.nccl_done.emplace(device);
  });
  // 3. Register all device memory; if one rank fails, no rank keeps its registration.
  std::string& why = state_->registration_error;
  together(world, [&] { why = state_->nccl->register_memory(); });
  try {
    together(world, [&] { ensure(why.empty(), "{}", why); });
  } catch (const Failure& failure) {
    why = failure.what();
    state_->nccl->deregister_memory();
  }
  return Transport::nccl;
}

void Engine::disconnect() {
  if (state_->nccl == nullptr) return;
  try {
    state_->retire_enqueued();
  } catch (const Failure&) {
  }
  // Device errors are ignored here: every user of the device reports them.
  // Memory of an unfinished request stays registered until its communicator is aborted.
  if (state_->enqueued.empty()) state_->nccl->deregister_memory();
  std::unique_ptr<Nccl> ended;
  const std::lock_guard lock(state_->mutex);
  std::swap(ended, state_->nccl);
}

std::size_t Engine::registered_bytes() const {
  return state_->nccl == nullptr ? 0 : state_->nccl->registered_bytes();
}

const std::string& Engine::registration_error() const { return state_->registration_error; }

Engine::Request Engine::all_reduce(const Communicator& group, float* data, void* scratch,
                                   std::int64_t count, SumOrder order, const Purpose& purpose,
                                   TransferType transfer_type) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float),
                    scratch_size = scratch_bytes(count, order, transfer_type);
  MpiCommunicator* implementation =
      mpi_communicator_of(group, static_cast<double>(count * element_bytes(transfer_type)));
  if (implementation == nullptr && state_->observes(group, count))
    return state_->observe({.kind = Call::Kind::all_reduce,
                            .group = group,
                            .purpose = purpose,
                            .bytes = count * element_bytes(transfer_type),
                            .sent_bytes = sent_by_all_reduce(group, count, order, transfer_type,
                                                             state_->observes_nccl),
                            .transfer_type = transfer_type,
                            .order = order});
  if (implementation == nullptr || count == 0) return 0;
  TRIREME_EXPECT(scratch_size == 0 || scratch != nullptr);
  const auto make_work = [&](float* at, void* staged_scratch) -> State::Work {
    if (transfer_type == TransferType::bfloat16)
      return Bfloat16Sum(rank_in(group), at, static_cast<BFloat16*>(staged_scratch), count);
    return AllReduce(rank_in(group), at, static_cast<float*>(staged_scratch), count, order);
  };
  if (Nccl::Channel* channel = state_->channel_of(data, group)) {
    const State::Work work = make_work(data, scratch);
    state_->call_list.clear();
    if (order == SumOrder::tree)
      std::visit([&](const auto& steps) { state_->call_list.record_steps(steps); }, work);
    else
      state_->call_list.record_library_all_reduce(rank_in(group), data, count,
                                                  bfloat16_scratch(scratch, transfer_type));
    return state_->submit(*channel, group, *implementation, purpose, work);
  }
  StagingCopy staging_copy = state_->staging_for(data, bytes + scratch_size, 2);
  float* const here = staging_copy.place(data, count);
  std::byte* const staged_scratch =
      staging_copy.place(static_cast<std::byte*>(scratch), scratch_size);
  staging_copy.copy_out(here, data, bytes);
  staging_copy.copy_in(data, here, bytes);
  return state_->submit(group, *implementation, next_tag(*implementation), purpose,
                        make_work(here, staged_scratch), staging_copy);
}

Engine::Request Engine::all_reduce(const Communicator& group, double* values, double* scratch,
                                   std::int64_t count, std::span<const RankAxis> axes,
                                   const Purpose& purpose) {
  TRIREME_EXPECT(std::accumulate(axes.begin(), axes.end(), std::int64_t{1},
                                 [](std::int64_t ranks, const RankAxis& axis) {
                                   return ranks * axis.size;
                                 }) == group.size());
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(double);
  MpiCommunicator* implementation = mpi_communicator_of(group, static_cast<double>(bytes));
  if (implementation == nullptr && state_->observes(group, count))
    return state_->observe({.kind = Call::Kind::all_reduce,
                            .group = group,
                            .purpose = purpose,
                            .bytes = static_cast<std::int64_t>(bytes),
                            .sent_bytes = sent_by_axis_sum(group, axes, count),
                            .order = SumOrder::axes});
  if (implementation == nullptr || count == 0) return 0;
  if (Nccl::Channel* channel = state_->channel_of(values, group)) {
    const AxisSum work(group.rank(), axes, values, scratch, count);
    state_->call_list.clear();
    state_->call_list.record_steps(work);
    return state_->submit(*channel, group, *implementation, purpose, work);
  }
  StagingCopy staging_copy = state_->staging_for(values, 2 * bytes, 2);
  double* const here = staging_copy.place(values, count);
  double* const staged_scratch = staging_copy.place(scratch, count);
  staging_copy.copy_out(here, values, bytes);
  staging_copy.copy_in(values, here, bytes);
  return state_->submit(group, *implementation, next_tag(*implementation), purpose,
                        AxisSum(group.rank(), axes, here, staged_scratch, count), staging_copy);
}

Engine::Request Engine::reduce_scatter(const Communicator& group, float* data, void* scratch,
                                       std::span<const std::int64_t> bounds, float* result,
                                       SumOrder order, const Purpose& purpose,
                                       TransferType transfer_type) {
  TRIREME_EXPECT(std::ssize(bounds) == group.size() + 1 &&
                 std::is_sorted(bounds.begin(), bounds.end()));
  const std::int64_t count = bounds.back() - bounds.front(),
                     mine = part_of(bounds, group.rank()).size();
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float),
                    scratch_size = scratch_bytes(count, order, transfer_type);
  MpiCommunicator* implementation =
      mpi_communicator_of(group, ring_bytes(rank_in(group), count * element_bytes(transfer_type)));
  if (implementation == nullptr && state_->observes(group, count))
    return state_->observe({.kind = Call::Kind::reduce_scatter,
                            .group = group,
                            .purpose = purpose,
                            .bytes = count * element_bytes(transfer_type),
                            .sent_bytes = sent_by_reduce_scatter(
                                group, bounds, order, transfer_type, state_->observes_nccl),
                            .parts = hash_of_parts(bounds),
                            .transfer_type = transfer_type,
                            .order = order});
  if (group.size() == 1 && data != nullptr)
    copy_bytes(state_->stream_of(data), result, data + bounds.front(), bytes);
  if (implementation == nullptr || count == 0) return 0;
  TRIREME_EXPECT(scratch_size == 0 || scratch != nullptr);
  float* const whole = data + bounds.front();
  const auto make_work = [&](float* at, void* staged_scratch, float* sum) -> State::Work {
    if (transfer_type == TransferType::bfloat16)
      return Bfloat16Sum(rank_in(group), at, static_cast<BFloat16*>(staged_scratch), bounds, sum);
    return ReduceScatter(rank_in(group), at, static_cast<float*>(staged_scratch), bounds, sum,
                         order);
  };
  if (Nccl::Channel* channel = state_->channel_of(whole, group)) {
    const State::Work work = make_work(whole, scratch, result);
    state_->call_list.clear();
    if (order == SumOrder::tree)
      std::visit([&](const auto& steps) { state_->call_list.record_steps(steps); }, work);
    else
      state_->call_list.record_library_reduce_scatter(rank_in(group), whole, bounds, result,
                                                      bfloat16_scratch(scratch, transfer_type));
    return state_->submit(*channel, group, *implementation, purpose, work);
  }
  const std::size_t mine_bytes = static_cast<std::size_t>(mine) * sizeof(float);
  StagingCopy staging_copy = state_->staging_for(whole, bytes + scratch_size + mine_bytes, 3);
  float* const here = staging_copy.place(whole, count);
  float* const sum = staging_copy.place(result, mine);
  std::byte* const staged_scratch =
      staging_copy.place(static_cast<std::byte*>(scratch), scratch_size);
  staging_copy.copy_out(here, whole, bytes);
  staging_copy.copy_in(result, sum, mine_bytes);
  return state_->submit(group, *implementation, next_tag(*implementation), purpose,
                        make_work(here, staged_scratch, sum), staging_copy);
}

Engine::Request Engine::all_gather(const Communicator& group, std::byte* data,
                                   std::span<const std::int64_t> bounds, const Purpose& purpose) {
  TRIREME_EXPECT(std::ssize(bounds) == group.size() + 1 &&
                 std::is_sorted(bounds.begin(), bounds.end()));
  const std::int64_t bytes = bounds.back() - bounds.front();
  MpiCommunicator* implementation = mpi_communicator_of(group, ring_bytes(rank_in(group), bytes));
  if (implementation == nullptr && state_->observes(group, bytes))
    return state_->observe({.kind = Call::Kind::all_gather,
                            .group = group,
                            .purpose = purpose,
                            .bytes = bytes,
                            .sent_bytes = sent_by_all_gather(group, bounds, state_->observes_nccl),
                            .parts = hash_of_parts(bounds)});
  if (implementation == nullptr || bytes == 0) return 0;
  std::byte* const whole = data + bounds.front();
  if (Nccl::Channel* channel = state_->channel_of(whole, group)) {
    state_->call_list.clear();
    state_->call_list.record_library_all_gather(rank_in(group), whole, bounds);
    return state_->submit(*channel, group, *implementation, purpose,
                          AllGather(rank_in(group), whole, bounds));
  }
  StagingCopy staging_copy = state_->staging_for(whole, static_cast<std::size_t>(bytes), 1);
  // The cast is safe: a send does not write its memory.
  std::byte* const here = staging_copy.place(whole, static_cast<std::size_t>(bytes));
  const IndexRange mine = part_of(bounds, group.rank());
  staging_copy.copy_out(here + mine.begin, whole + mine.begin,
                        static_cast<std::size_t>(mine.size()));
  staging_copy.copy_in(whole, here, static_cast<std::size_t>(mine.begin));
  staging_copy.copy_in(whole + mine.end, here + mine.end,
                       static_cast<std::size_t>(bytes - mine.end));
  return state_->submit(group, *implementation, next_tag(*implementation), purpose,
                        AllGather(rank_in(group), here, bounds), staging_copy);
}

Engine::Request Engine::send(const Communicator& group, std::span<const std::byte> data, int to,
                             int tag, const Purpose& purpose) {
  TRIREME_EXPECT(0 <= to && to < group.size() && to != group.rank() && 0 <= tag && tag < num_tags);
  MpiCommunicator* implementation = mpi_communicator_of(group, static_cast<double>(data.size()));
  if (implementation == nullptr && state_->observes(group, std::ssize(data)))
    return state_->observe({.kind = Call::Kind::send,
                            .group = group,
                            .purpose = purpose,
                            .bytes = std::ssize(data),
                            .sent_bytes = static_cast<double>(data.size()),
                            .peer = to,
                            .tag = tag});
  if (implementation == nullptr || data.empty()) return 0;
  if (Nccl::Channel* channel = state_->channel_of(data.data(), group, group.rank(), to, tag)) {
    state_->call_list.clear();
    state_->call_list.send(data, 1);
    state_->call_list.end_group();
    return state_->submit(*channel, group, *implementation, purpose, Send(data, to, tag));
  }
  StagingCopy staging_copy = state_->staging_for(data.data(), data.size(), 1);
  std::byte* const here = staging_copy.place(const_cast<std::byte*>(data.data()), data.size());
  staging_copy.copy_out(here, data.data(), data.size());
  return state_->submit(group, *implementation, num_tags + tag, purpose,
                        Send({here, data.size()}, to, tag), staging_copy);
}

Engine::Request Engine::receive(const Communicator& group, std::span<std::byte> data, int from,
                                int tag, const Purpose& purpose) {
  TRIREME_EXPECT(0 <= from && from < group.size() && from != group.rank() && 0 <= tag &&
                 tag < num_tags);
  MpiCommunicator* implementation = mpi_communicator_of(group, 0);
  if (implementation == nullptr && state_->observes(group, std::ssize(data)))
    return state_->observe({.kind = Call::Kind::receive,
                            .group = group,
                            .purpose = purpose,
                            .bytes = std::ssize(data),
                            .peer = from,
                            .tag = tag});
  if (implementation == nullptr || data.empty()) return 0;
  if (Nccl::Channel* channel = state_->channel_of(data.data(), group, from, group.rank(), tag)) {
    state_->call_list.clear();
    state_->call_list.receive(data, 0);
    state_->call_list.end_group();
    return state_->submit(*channel, group, *implementation, purpose, Receive(data, from, tag));
  }
  StagingCopy staging_copy = state_->staging_for(data.data(), data.size(), 1);
  std::byte* const here = staging_copy.place(data.data(), data.size());
  staging_copy.copy_in(data.data(), here, data.size());
  return state_->submit(group, *implementation, num_tags + tag, purpose,
                        Receive({here, data.size()}, from, tag), staging_copy);
}

void Engine::progress() { state_->progress(); }

void Engine::observe(Observer observer, DeviceKind target) {
  TRIREME_EXPECT(state_->pending == 0 && state_->staged.empty() && state_->enqueued.empty());
  state_->is_observed = true;
  state_->observer = std::move(observer);
  state_->observes_nccl = target == DeviceKind::cuda;
}

void Engine::wait(Request request) {
  if (!state_->is_observed) return state_->wait(request);
  if (request != 0 && state_->observer)
    state_->observer({.kind = Call::Kind::wait, .request = request});
}

void Engine::quiesce() {
  if (!state_->is_observed) return state_->quiesce();
  if (state_->observer) state_->observer({.kind = Call::Kind::quiesce});
}

Engine::ProgressMode Engine::progress_mode() const { return state_->progress_mode; }

void Engine::record_spans(bool record) {
  const std::lock_guard lock(state_->mutex);
  state_->records_spans = record;
}

std::vector<Engine::Span> Engine::take_spans() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->spans, {});
}

double Engine::bytes_sent() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bytes_sent;
}

double Engine::waited_seconds() const { return state_->waited_seconds; }

std::size_t Engine::staging_bytes() const {
  return state_->staging == nullptr ? 0 : state_->staging->bytes();
}

}  // namespace trireme::comm
