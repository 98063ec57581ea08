// SPDX-License-Identifier: Apache-2.0
//
// The stand-in for NCCL: checks the arguments of each operation and sends nothing.
//
// Checked are: a live communicator, a group call, a valid peer, the device of the stream, and
// buffers in device memory. Buffers of one operation must either all be registered or none.

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include <nccl.h>

#include "record.hpp"
#include "state.hpp"

struct ncclComm {
  int device, rank, size;
  bool asked = false, ended = false;
};

namespace stand_in {
namespace {

struct Registration {
  ncclComm_t comm;
  const std::byte* begin;
  std::size_t bytes;
};

/// Registered buffers by handle.
struct Registrations {
  std::mutex mutex;
  std::map<std::uintptr_t, Registration> all;
  std::uintptr_t next = 0;
};

Registrations& registrations() {
  static auto* const all = new Registrations;
  return *all;
}

/// Returns whether one registration covers the memory.
bool is_registered(ncclComm_t comm, const void* data, std::size_t bytes) {
  Registrations& r = registrations();
  const std::lock_guard lock(r.mutex);
  const auto* const begin = static_cast<const std::byte*>(data);
  for (const auto& [handle, known] : r.all)
    if (known.comm == comm && begin >= known.begin && begin + bytes <= known.begin + known.bytes)
      return true;
  return false;
}

thread_local int groups = 0;

std::size_t bytes_of(std::size_t count, ncclDataType_t type) {
  return count * (type == ncclInt8 ? 1 : type == ncclBfloat16 ? 2 : 4);
}

struct Buffer {
  const void* data;
  std::size_t bytes;
};

ncclResult_t exchange(const char* by, ncclComm_t comm, cudaStream_t stream, int peer,
                      std::initializer_list<Buffer> buffers) {
  count_call(Counter::exchange);
  if (comm->ended) fault(std::string(by) + ": the communicator has ended");
  if (groups == 0) fault(std::string(by) + ": not inside a group call");
  if (peer < 0 || peer >= comm->size) fault(std::string(by) + ": no such rank");
  if (device_of_stream(stream, by) != comm->device)
    fault(std::string(by) + ": a stream of another device than the communicator's");
  std::size_t in_place = 0;
  for (const Buffer& buffer : buffers) {
    expect_on_device(buffer.data, buffer.bytes, comm->device, by);
    in_place += is_registered(comm, buffer.data, buffer.bytes) ? 1 : 0;
  }
  if (in_place == buffers.size()) count_call(Counter::exchange_in_place);
  // If one rank passes registered memory, all ranks must. A rank with buffers of both kinds cannot
  // know what the others do.
  if (in_place != 0 && in_place != buffers.size())
    fault(std::string(by) + ": mixes registered and unregistered memory");
  return ncclSuccess;
}

bool refuses_memory(int device) {
  const char* refusing = std::getenv("STAND_IN_CUDA_UNREGISTERED");
  return refusing != nullptr && std::atoi(refusing) == device;
}

}  // namespace

void expect_unregistered(const void* address, std::size_t bytes) {
  Registrations& r = registrations();
  const std::lock_guard lock(r.mutex);
  const auto* const begin = static_cast<const std::byte*>(address);
  for (const auto& [handle, known] : r.all)
    if (known.begin < begin + bytes && begin < known.begin + known.bytes)
      return fault("freed memory is still registered with a communicator");
}

}  // namespace stand_in

using namespace stand_in;

STAND_IN_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 1, sizeof *id);
  return ncclSuccess;
}

/// Creates a non-blocking communicator. It becomes ready at the first ncclCommGetAsyncError().
STAND_IN_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId, int rank,
                                                 ncclConfig_t* config) {
  if (config->blocking != 0) fault("a blocking communicator");
  if (rank < 0 || rank >= size) fault("a communicator with an invalid rank");
  *comm = new ncclComm{current_device(), rank, size};
  return ncclInProgress;
}

STAND_IN_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = comm->asked ? ncclSuccess : ncclInProgress;
  comm->asked = true;
  return ncclSuccess;
}

STAND_IN_API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm->ended) fault("a communicator is aborted twice");
  comm->ended = true;
  Registrations& r = registrations();
  const std::lock_guard lock(r.mutex);
  for (const auto& [handle, known] : r.all)
    if (known.comm == comm) fault("an aborted communicator still has registered memory");
  return ncclSuccess;
}

STAND_IN_API ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, std::size_t bytes,
                                           void** handle) {
  count_call(Counter::registration);
  if (comm->ended || !comm->asked)
    fault("memory is registered with a communicator that is not ready or has ended");
  expect_on_device(data, bytes, comm->device, "registering memory");
  if (is_registered(comm, data, bytes)) fault("memory is registered twice");
  if (refuses_memory(comm->device)) return ncclSystemError;
  Registrations& r = registrations();
  const std::lock_guard lock(r.mutex);
  r.all[++r.next] = {comm, static_cast<const std::byte*>(data), bytes};
  *handle = reinterpret_cast<void*>(r.next);
  return ncclSuccess;
}

STAND_IN_API ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  if (comm->ended) fault("memory is deregistered from a communicator that has ended");
  Registrations& r = registrations();
  const std::lock_guard lock(r.mutex);
  const auto found = r.all.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found == r.all.end() || found->second.comm != comm) {
    fault("deregistered memory is not registered with this communicator");
    return ncclInvalidUsage;
  }
  r.all.erase(found);
  return ncclSuccess;
}

STAND_IN_API const char* ncclGetErrorString(ncclResult_t) {
  return "an error of the stand-in for NCCL";
}
STAND_IN_API const char* ncclGetLastError(ncclComm_t) { return ""; }

STAND_IN_API ncclResult_t ncclGroupStart() {
  ++groups;
  return ncclSuccess;
}

STAND_IN_API ncclResult_t ncclGroupEnd() {
  if (groups-- <= 0) fault("an NCCL group ends that never began");
  return ncclSuccess;
}

STAND_IN_API ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type,
                                   int peer, ncclComm_t comm, cudaStream_t stream) {
  return exchange("ncclSend", comm, stream, peer, {{from, bytes_of(count, type)}});
}

STAND_IN_API ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer,
                                   ncclComm_t comm, cudaStream_t stream) {
  return exchange("ncclRecv", comm, stream, peer, {{to, bytes_of(count, type)}});
}

STAND_IN_API ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count,
                                        ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                                        cudaStream_t stream) {
  return exchange("ncclAllReduce", comm, stream, 0,
                  {{from, bytes_of(count, type)}, {to, bytes_of(count, type)}});
}

STAND_IN_API ncclResult_t ncclReduce(const void* from, void* to, std::size_t count,
                                     ncclDataType_t type, ncclRedOp_t, int root, ncclComm_t comm,
                                     cudaStream_t stream) {
  if (comm->rank != root) to = const_cast<void*>(from);
  return exchange("ncclReduce", comm, stream, root,
                  {{from, bytes_of(count, type)}, {to, bytes_of(count, type)}});
}

STAND_IN_API ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count,
                                        ncclDataType_t type, int root, ncclComm_t comm,
                                        cudaStream_t stream) {
  if (comm->rank != root) from = to;
  return exchange("ncclBroadcast", comm, stream, root,
                  {{from, bytes_of(count, type)}, {to, bytes_of(count, type)}});
}

STAND_IN_API ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count,
                                            ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                                            cudaStream_t stream) {
  return exchange("ncclReduceScatter", comm, stream, 0,
                  {{from, bytes_of(count, type) * static_cast<std::size_t>(comm->size)},
                   {to, bytes_of(count, type)}});
}

STAND_IN_API ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count,
                                        ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return exchange("ncclAllGather", comm, stream, 0,
                  {{from, bytes_of(count, type)},
                   {to, bytes_of(count, type) * static_cast<std::size_t>(comm->size)}});
}
