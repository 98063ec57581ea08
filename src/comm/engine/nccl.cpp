// SPDX-License-Identifier: Apache-2.0
//
// NCCL communicators, and the execution of recorded calls on their streams.
//
// 1. Engine::connect() calls connect() for each group and route: creates the communicator and uses
//    it once.
// 2. It calls register_memory() for all device memory.
// 3. Engine's requests call enqueue(); check() polls for asynchronous errors.
// 4. The destructor, and any error, aborts all communicators.
//
// All communicators are non-blocking, so that errors of other ranks are noticed.

#include "nccl.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/comm/versions.hpp"
#include "trireme/device/launch.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/elementwise.hpp"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 20, 0), "NCCL 2.20 or newer is needed");

namespace trireme::comm {
namespace {

// Time limit in seconds to connect all ranks of a group: 1000 ranks take less than a minute. The
// watchdog detects a lost rank earlier.
constexpr double connect_seconds = 600;
// Time limit in seconds of ncclCommAbort, which can hang when the network does. The process exits
// then.
constexpr double max_abort_seconds = 10;
// Maximum thread blocks of a communicator's kernels. A rank has mostly fewer than 8 communicators,
// whose kernels fit on a device side by side.
constexpr int max_blocks = 16;

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

}  // namespace

struct Nccl::Channel {
  Communicator group;  // keeps the implementation alive
  int from = -1, to = -1;
  std::vector<int> tags;  // of a message route; empty for a group
  ncclComm_t handle = nullptr;
  OwnedStream stream;
  std::vector<void*> registered;
};

struct Nccl::State {
  explicit State(const Stream& compute_in)
      : compute(compute_in),
        submitted(compute_in.device),
        first_exchange_buffer(compute_in.device, 4096, "NCCL: first exchange") {}

  void create(Channel& channel, const ncclUniqueId& id, int rank, int size,
              const CallList& first_exchange);
  void enqueue(Channel& channel, const CallList& plan);
  void post(const Channel& channel, const CallList::Call& call);
  void wait_until_enqueued(const Channel& channel, double until);
  void check_deadline(double until);
  void check_result(const Channel& channel, ncclResult_t result, const char* call);
  [[noreturn]] void fail(const Channel& channel, ncclResult_t result, const char* call);
  void abort();

  Stream compute;
  Event submitted;
  Allocation first_exchange_buffer;
  std::deque<Channel> channels;
  CallList call_list;
  std::size_t registered_bytes = 0;
};

/// Aborts all communicators of this rank, which also ends their kernels. Otherwise a rank that
/// synchronizes with the device would hang. Runs in a thread with a time limit, because
/// ncclCommAbort can hang too.
void Nccl::State::abort() {
  std::vector<ncclComm_t> handles;
  for (Channel& channel : channels) {
    channel.registered.clear();  // ends with the communicator
    if (channel.handle != nullptr) handles.push_back(std::exchange(channel.handle, nullptr));
  }
  if (handles.empty()) return;
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  try {
    std::thread([handles, ended, device = compute.device.index] {
      cudaSetDevice(device);
      for (const ncclComm_t handle : handles) ncclCommAbort(handle);
      *ended = true;
    }).detach();
  } catch (const std::system_error&) {
    // Without a thread nothing is aborted; the exit of the process ends the kernels.
    return;
  }
  for (const double until = monotonic_seconds() + max_abort_seconds;
       !*ended && monotonic_seconds() < until;)
    pause();
}

/// Aborts all communicators and throws a Failure with NCCL's message.
void Nccl::State::fail(const Channel& channel, ncclResult_t result, const char* call) {
  const std::string detail = channel.handle == nullptr ? "" : ncclGetLastError(channel.handle);
  abort();
  throw Failure(fmt::format("{} failed: {}{}{}", call, ncclGetErrorString(result),
                            detail.empty() ? "" : ": ", detail));
}

/// Throws a Failure if `result` is an error.
void Nccl::State::check_result(const Channel& channel, ncclResult_t result, const char* call) {
  if (result != ncclSuccess && result != ncclInProgress) fail(channel, result, call);
}

/// Throws a Failure if the time limit has passed.
void Nccl::State::check_deadline(double until) {
  if (monotonic_seconds() < until) return;
  abort();
  throw Failure(
      fmt::format("NCCL: not all ranks of a group connected within {} s; can NCCL reach the "
                  "other nodes? "
                  "(NCCL_DEBUG=INFO logs the network that it uses)",
                  connect_seconds));
}

/// Waits until the calls issued so far are on the stream, since communicators do not block. Throws
/// on errors.
void Nccl::State::wait_until_enqueued(const Channel& channel, double until) {
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check_result(channel, ncclCommGetAsyncError(channel.handle, &state), "ncclCommGetAsyncError");
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) fail(channel, state, "NCCL");
    check_deadline(until);
    pause();
  }
}

void Nccl::State::create(Channel& channel, const ncclUniqueId& id, int rank, int size,
                         const CallList& first_exchange) {
  // 1. Create the communicator on a stream of its own.
  const double until = monotonic_seconds() + connect_seconds;
  const cudaError_t error = cudaSetDevice(compute.device.index);
  ensure(error == cudaSuccess, "CUDA cannot select the device: {}", cudaGetErrorString(error));
  channel.stream = OwnedStream(compute.device, OwnedStream::Priority::high);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = max_blocks;
  check_result(channel, ncclCommInitRankConfig(&channel.handle, size, id, rank, &config),
               "ncclCommInitRankConfig");
  wait_until_enqueued(channel, until);
  // 2. Use it once. NCCL opens connections on first use, in calls of both sides: here, not in a
  //    step, where one side may arrive late.
  enqueue(channel, first_exchange);
  Event done(compute.device);
  done.record(channel.stream);
  while (!done.is_done()) {
    wait_until_enqueued(channel, until);
    check_deadline(until);
    pause();
  }
  clear_launch_error();  // as in register_memory()
}

/// Issues one call on the channel's stream.
void Nccl::State::post(const Channel& channel, const CallList::Call& call) {
  const auto stream = static_cast<cudaStream_t>(channel.stream.get().handle);
  const auto count = static_cast<std::size_t>(call.count);
  const ncclComm_t comm = channel.handle;
  const ncclDataType_t summed = call.in_bfloat16 ? ncclBfloat16 : ncclFloat;
  switch (call.kind) {
    case CallList::Kind::send:
      return check_result(channel, ncclSend(call.from, count, ncclInt8, call.peer, comm, stream),
                          "ncclSend");
    case CallList::Kind::receive:
      return check_result(channel, ncclRecv(call.to, count, ncclInt8, call.peer, comm, stream),
                          "ncclRecv");
    case CallList::Kind::all_reduce:
      return check_result(channel,
                          ncclAllReduce(call.from, call.to, count, summed, ncclSum, comm, stream),
                          "ncclAllReduce");
    case CallList::Kind::reduce:
      return check_result(
          channel, ncclReduce(call.from, call.to, count, summed, ncclSum, call.peer, comm, stream),
          "ncclReduce");
    case CallList::Kind::reduce_scatter:
      return check_result(
          channel, ncclReduceScatter(call.from, call.to, count, summed, ncclSum, comm, stream),
          "ncclReduceScatter");
    case CallList::Kind::all_gather:
      return check_result(channel, ncclAllGather(call.from, call.to, count, ncclInt8, comm, stream),
                          "ncclAllGather");
    case CallList::Kind::broadcast:
      return check_result(
          channel, ncclBroadcast(call.from, call.to, count, ncclInt8, call.peer, comm, stream),
          "ncclBroadcast");
    case CallList::Kind::add:
      return kernels::add(channel.stream, call.count, static_cast<const float*>(call.from),
                          static_cast<float*>(call.to));
    case CallList::Kind::add_bfloat16:
      return kernels::add(channel.stream, call.count, static_cast<const BFloat16*>(call.from),
                          static_cast<float*>(call.to));
    case CallList::Kind::add_float64:
      return kernels::add(channel.stream, call.count, static_cast<const double*>(call.from),
                          static_cast<double*>(call.to));
    case CallList::Kind::narrow:
      return kernels::cast(channel.stream, call.count, static_cast<const float*>(call.from),
                           static_cast<BFloat16*>(call.to));
    case CallList::Kind::widen:
      return kernels::cast(channel.stream, call.count, static_cast<const BFloat16*>(call.from),
                           static_cast<float*>(call.to));
    case CallList::Kind::copy:
      return copy_bytes(channel.stream, call.to, call.from, count * sizeof(float));
    case CallList::Kind::end_group: return;
  }
}

/// Issues all calls. Consecutive NCCL calls up to Kind::end_group form one NCCL group.
void Nccl::State::enqueue(Channel& channel, const CallList& plan) {
  bool together = false;
  for (const CallList::Call& call : plan.calls()) {
    const bool of_nccl = !call.is_local();
    if (call.kind == CallList::Kind::end_group) {
      check_result(channel, ncclGroupEnd(), "ncclGroupEnd");
      wait_until_enqueued(channel, monotonic_seconds() + connect_seconds);
      together = false;
      continue;
    }
    TRIREME_EXPECT(of_nccl || !together);
    if (of_nccl && !together) check_result(channel, ncclGroupStart(), "ncclGroupStart");
    together = of_nccl;
    post(channel, call);
  }
}

std::string nccl_version() {
  int version = 0;  // 22703 is 2.27.3
  const ncclResult_t result = ncclGetVersion(&version);
  ensure(result == ncclSuccess, "ncclGetVersion failed: {}", ncclGetErrorString(result));
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

bool Nccl::built() { return true; }

Nccl::Nccl(const Stream& compute) : state_(std::make_unique<State>(compute)) {}

Nccl::~Nccl() { state_->abort(); }

const Stream& Nccl::compute() const { return state_->compute; }

void Nccl::connect(const Communicator& group) {
  if (group.size() == 1 || channel_of(group) != nullptr) return;
  // 1. Rank 0 creates the id and broadcasts it.
  ncclUniqueId id;
  together(group, [&] {
    if (group.rank() != 0) return;
    const ncclResult_t result = ncclGetUniqueId(&id);
    ensure(result == ncclSuccess, "ncclGetUniqueId failed: {}", ncclGetErrorString(result));
  });
  group.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
  // 2. Some MPI libraries hang in a broadcast while other ranks already run NCCL (NVIDIA/cuDecomp,
  //    issue 24).
  group.barrier();
  // 3. All ranks create the communicator.
  together(group, [&] {
    Channel& channel = state_->channels.emplace_back();
    channel.group = group;
    state_->call_list.clear();
    state_->call_list.record_library_all_reduce(
        {group.rank(), group.size()},
        reinterpret_cast<float*>(state_->first_exchange_buffer.data()), 1);
    state_->create(channel, id, group.rank(), group.size(), state_->call_list);
  });
}

void Nccl::connect(const Communicator& group, std::span<const Engine::MessageRoute> routes) {
  if (group.size() == 1 || routes.empty()) return;
  // 1. The sender of each route creates its id and broadcasts it.
  std::vector<ncclUniqueId> ids(routes.size());
  together(group, [&] {
    for (std::size_t i = 0; i < routes.size(); ++i) {
      if (routes[i].from != group.rank()) continue;
      const ncclResult_t result = ncclGetUniqueId(&ids[i]);
      ensure(result == ncclSuccess, "ncclGetUniqueId failed: {}", ncclGetErrorString(result));
    }
  });
  for (std::size_t i = 0; i < routes.size(); ++i)
    group.broadcast(std::as_writable_bytes(std::span(&ids[i], 1)), routes[i].from);
  group.barrier();
  // 2. Create the communicators in the same order on all ranks, so that no cycle of waits forms.
  // Routes with even senders first, so that neighbors do not wait in a chain.
  std::vector<std::size_t> order(routes.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_partition(order.begin(), order.end(),
                        [&](std::size_t i) { return routes[i].from % 2 == 0; });
  together(group, [&] {
    for (const std::size_t i : order) {
      const Engine::MessageRoute& route = routes[i];
      if (route.from != group.rank() && route.to != group.rank()) continue;
      Channel& channel = state_->channels.emplace_back();
      channel.group = group;
      channel.from = route.from;
      channel.to = route.to;
      channel.tags = route.tags;
      state_->call_list.clear();
      const std::span<std::byte> byte(state_->first_exchange_buffer.data(), 1);
      if (route.from == group.rank())
        state_->call_list.send(byte, 1);
      else
        state_->call_list.receive(byte, 0);
      state_->call_list.end_group();
      state_->create(channel, ids[i], route.from == group.rank() ? 0 : 1, 2, state_->call_list);
    }
  });
}

std::string Nccl::register_memory() {
  for (const std::span<std::byte> memory : memory_of(state_->compute.device)) {
    bool known = !state_->channels.empty();
    for (Channel& channel : state_->channels) {
      void* handle = nullptr;
      const ncclResult_t result =
          ncclCommRegister(channel.handle, memory.data(), memory.size(), &handle);
      clear_launch_error();  // of what NCCL tried and the device does not have
      if (result == ncclInProgress)
        state_->wait_until_enqueued(channel, monotonic_seconds() + connect_seconds);
      else if (result != ncclSuccess)
        return fmt::format("ncclCommRegister: {}", ncclGetErrorString(result));
      if (handle != nullptr) channel.registered.push_back(handle);
      known = known && handle != nullptr;
    }
    if (known) state_->registered_bytes += memory.size();
  }
  return {};
}

void Nccl::deregister_memory() {
  for (Channel& channel : state_->channels) {
    for (void* handle : channel.registered) ncclCommDeregister(channel.handle, handle);
    channel.registered.clear();
  }
  state_->registered_bytes = 0;
}

std::size_t Nccl::registered_bytes() const { return state_->registered_bytes; }

Nccl::Channel* Nccl::channel_of(const Communicator& group) const {
  const auto channel =
      std::find_if(state_->channels.begin(), state_->channels.end(), [&](const Channel& c) {
        return c.tags.empty() && &c.group.implementation() == &group.implementation();
      });
  return channel == state_->channels.end() ? nullptr : &*channel;
}

Nccl::Channel* Nccl::channel_of(const Communicator& group, int from, int to, int tag) const {
  const auto channel =
      std::find_if(state_->channels.begin(), state_->channels.end(), [&](const Channel& c) {
        return &c.group.implementation() == &group.implementation() && c.from == from &&
               c.to == to && std::find(c.tags.begin(), c.tags.end(), tag) != c.tags.end();
      });
  return channel == state_->channels.end() ? nullptr : &*channel;
}

void Nccl::enqueue(Channel& channel, const CallList& plan, Event& done) {
  ensure(channel.handle != nullptr, "NCCL cannot be used: an earlier request failed");
  state_->submitted.record(state_->compute);
  state_->submitted.delay(channel.stream);
  state_->enqueue(channel, plan);
  check_launch("of NCCL");
  done.record(channel.stream);
}

void Nccl::check() {
  for (const Channel& channel : state_->channels) {
    if (channel.handle == nullptr) continue;
    ncclResult_t result = ncclSuccess;
    state_->check_result(channel, ncclCommGetAsyncError(channel.handle, &result),
                         "ncclCommGetAsyncError");
    state_->check_result(channel, result, "NCCL");
  }
}

}  // namespace trireme::comm
