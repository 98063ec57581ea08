// SPDX-License-Identifier: Apache-2.0
//
// Streams and events of the stand-in. All work completes at once, so waits only check their
// arguments.
//
// cudaEventQuery() returns cudaErrorNotReady once after each record, so that programs cannot rely
// on completion. A wait for an event that is at least one whole step old counts as late_event_wait.

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "record.hpp"
#include "state.hpp"

namespace stand_in {
namespace {

struct HandleState {
  int device;
  /// Event: recorded and not queried since. The first query always returns cudaErrorNotReady.
  bool unqueried = false;
  int step = 0;     ///< event: number of steps that had ended when it was recorded
  double time = 0;  ///< event: device_time() when it was recorded
};

std::atomic<double> time_of_devices = 0;

/// Streams and events by handle. Handles are never reused.
struct Handles {
  std::mutex mutex;
  std::map<std::uintptr_t, HandleState> streams, events;
  std::uintptr_t next = 0x57000000;
};

Handles& handles() {
  static auto* const all = new Handles;
  return *all;
}

template <class Handle>
HandleState* find(std::map<std::uintptr_t, HandleState>& among, Handle handle, const char* by) {
  const auto found = among.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found != among.end()) return &found->second;
  fault(std::string(by) + ": the event or stream does not exist");
  return nullptr;
}

template <class Handle>
cudaError_t make(std::map<std::uintptr_t, HandleState>& among, Handle* handle) {
  Handles& h = handles();
  const std::lock_guard lock(h.mutex);
  h.next += 0x100;
  among[h.next] = {current_device()};
  *handle = reinterpret_cast<Handle>(h.next);
  return cudaSuccess;
}

template <class Handle>
cudaError_t end(std::map<std::uintptr_t, HandleState>& among, Handle handle, const char* by) {
  Handles& h = handles();
  const std::lock_guard lock(h.mutex);
  if (find(among, handle, by) == nullptr) return cudaErrorInvalidResourceHandle;
  among.erase(reinterpret_cast<std::uintptr_t>(handle));
  return cudaSuccess;
}

cudaError_t make_event(cudaEvent_t* event) {
  touch_device("an event");
  count_call(Counter::event);
  return make(handles().events, event);
}

}  // namespace

double device_time() { return time_of_devices; }
void add_time(double milliseconds) { time_of_devices = time_of_devices + milliseconds; }

int device_of_stream(cudaStream_t stream, const char* by) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    touch_device(by);
    return current_device();
  }
  Handles& h = handles();
  const std::lock_guard lock(h.mutex);
  const HandleState* place = find(h.streams, stream, by);
  return place == nullptr ? -1 : place->device;
}

void report_stream_leaks(const std::function<void(const std::string&)>& report) {
  for (std::size_t i = 0; i < handles().streams.size(); ++i) report("a stream was never destroyed");
  for (std::size_t i = 0; i < handles().events.size(); ++i) report("an event was never destroyed");
}

}  // namespace stand_in

using namespace stand_in;

STAND_IN_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  touch_device("a stream");
  count_call(Counter::stream);
  return make(handles().streams, stream);
}

STAND_IN_API cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

STAND_IN_API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return end(handles().streams, stream, "destroying a stream");
}

STAND_IN_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return make_event(event);
}
STAND_IN_API cudaError_t cudaEventCreate(cudaEvent_t* event) { return make_event(event); }
STAND_IN_API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return end(handles().events, event, "destroying an event");
}

STAND_IN_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (is_broken()) return device_state();
  count_call(Counter::record);
  const int device = device_of_stream(stream, "recording an event");
  Handles& h = handles();
  const std::lock_guard lock(h.mutex);
  HandleState* const place = find(h.events, event, "recording an event");
  if (place == nullptr) return cudaErrorInvalidResourceHandle;
  place->unqueried = true;
  place->step = steps_completed();
  place->time = device_time();
  if (place->device == device) return cudaSuccess;
  fault("an event of one device is recorded on a stream of another");
  return cudaErrorInvalidResourceHandle;
}

STAND_IN_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (is_broken()) return device_state();
  count_call(Counter::event_delay);
  device_of_stream(stream, "delaying a stream");
  Handles& h = handles();
  const std::lock_guard lock(h.mutex);
  return find(h.events, event, "delaying a stream") == nullptr ? cudaErrorInvalidResourceHandle
                                                               : cudaSuccess;
}

STAND_IN_API cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (is_broken()) return device_state();
  count_call(Counter::query);
  Handles& h = handles();
  const std::lock_guard lock(h.mutex);
  HandleState* const place = find(h.events, event, "querying an event");
  if (place == nullptr) return set_last_error(cudaErrorInvalidResourceHandle);
  return set_last_error(std::exchange(place->unqueried, false) ? cudaErrorNotReady : cudaSuccess);
}

STAND_IN_API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (is_broken()) return device_state();
  touch_device("waiting for an event");  // from any thread
  count_call(Counter::event_wait);
  Handles& h = handles();
  const std::lock_guard lock(h.mutex);
  const HandleState* const place = find(h.events, event, "waiting for an event");
  if (place == nullptr) return cudaErrorInvalidResourceHandle;
  if (steps_completed() - place->step >= 2) count_call(Counter::late_event_wait);
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from,
                                              cudaEvent_t to) {
  if (is_broken()) return device_state();
  Handles& h = handles();
  const std::lock_guard lock(h.mutex);
  const HandleState *const first = find(h.events, from, "measuring a time"),
                           *const last = find(h.events, to, "measuring a time");
  if (first == nullptr || last == nullptr) return cudaErrorInvalidResourceHandle;
  *milliseconds = static_cast<float>(1 + last->time - first->time);
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (is_broken()) return device_state();
  count_call(Counter::stream_wait);
  return device_of_stream(stream, "waiting for a stream") < 0 ? cudaErrorInvalidResourceHandle
                                                              : cudaSuccess;
}

STAND_IN_API cudaError_t cudaDeviceSynchronize() {
  if (is_broken()) return device_state();
  touch_device("waiting for it");
  count_call(Counter::device_wait);
  return cudaSuccess;
}
