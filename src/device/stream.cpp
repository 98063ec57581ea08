// SPDX-License-Identifier: Apache-2.0
//
// Streams, events and copies: each function dispatches on the kind of device (cpu, emulated, cuda).
//
// Functions that enqueue an operation other than a launch first call flush(), so that launches held
// by LaunchGraphs keep their order. Event::wait() and copy_bytes() select the CUDA device first,
// because threads that have not selected it call them.

#include "trireme/device/stream.hpp"

#include <atomic>
#include <cstring>

#include "emulated.hpp"
#include "memory_map.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/device/launch.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include "cuda.hpp"
#endif

namespace trireme {
namespace {

#if defined(TRIREME_ENABLE_CUDA)
using cuda::check;
cudaStream_t to_cuda(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t to_cuda(void* event) { return static_cast<cudaEvent_t>(event); }

double cuda_seconds_between(void* earlier, void* later) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, to_cuda(earlier), to_cuda(later)),
        "reading a stopwatch");
  return 1e-3 * milliseconds;
}

bool is_ordinary_host(const void* address) {
  return in_host_memory(device_of(address).kind) && !is_pinned(address);
}
#endif

std::atomic<void (*)(void*)> destroy_callback{nullptr};

/// Submits the held launches, so that the next operation comes after them.
void flush(const Stream& stream) {
  if (stream.graphs != nullptr) stream.graphs->flush();
}

/// An event of the emulated device: the number of the last work item enqueued on the stream.
struct EmulatedEvent {
  void* stream = nullptr;
  std::uint64_t number = 0;
};

EmulatedEvent* to_emulated_event(void* handle) { return static_cast<EmulatedEvent*>(handle); }

}  // namespace

OwnedStream::OwnedStream(Device device, [[maybe_unused]] Priority priority, LaunchGraphs* graphs)
    : stream_{device, nullptr, graphs} {
  if (device.kind == DeviceKind::emulated) stream_.handle = emulated::make_stream();
#if defined(TRIREME_ENABLE_CUDA)
  if (device.kind != DeviceKind::cuda) return;
  int least = 0, greatest = 0;
  cudaStream_t stream = nullptr;
  check(cuda::select_device(device.index), "selecting the device");
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "creating a stream");
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     priority == Priority::high ? greatest : least),
        "creating a stream");
  stream_.handle = stream;
#endif
}

OwnedStream::~OwnedStream() {
  if (stream_.handle == nullptr) return;
  if (const auto call = destroy_callback.load()) call(stream_.handle);
#if defined(TRIREME_ENABLE_CUDA)
  if (stream_.device.kind == DeviceKind::cuda) cudaStreamDestroy(to_cuda(stream_));
#endif
}

void set_stream_destroy_callback(void (*call)(void* handle)) { destroy_callback = call; }

Event::Event(Device device, [[maybe_unused]] bool timed) : device_(device) {
  if (device.kind == DeviceKind::emulated) handle_ = new EmulatedEvent;
#if defined(TRIREME_ENABLE_CUDA)
  if (device.kind != DeviceKind::cuda) return;
  cudaEvent_t event = nullptr;
  check(cuda::select_device(device.index), "selecting the device");
  check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
        "creating an event");
  handle_ = event;
#endif
}

Event::~Event() {
  if (handle_ == nullptr) return;
  if (device_.kind == DeviceKind::emulated) delete to_emulated_event(handle_);
#if defined(TRIREME_ENABLE_CUDA)
  if (device_.kind == DeviceKind::cuda) cudaEventDestroy(to_cuda(handle_));
#endif
}

Event::Event(Event&& other) noexcept
    : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

void Event::record(const Stream& stream) {
  flush(stream);
  if (handle_ == nullptr) return;
  if (device_.kind == DeviceKind::emulated)
    *to_emulated_event(handle_) = {stream.handle, emulated::last_item_number()};
#if defined(TRIREME_ENABLE_CUDA)
  if (device_.kind == DeviceKind::cuda)
    check(cudaEventRecord(to_cuda(handle_), to_cuda(stream)), "recording an event");
#endif
}

void Event::delay(const Stream& stream) const {
  flush(stream);
  if (handle_ == nullptr) return;
  if (device_.kind == DeviceKind::emulated)
    emulated::delay(stream.handle, to_emulated_event(handle_)->stream,
                    to_emulated_event(handle_)->number);
#if defined(TRIREME_ENABLE_CUDA)
  if (device_.kind == DeviceKind::cuda)
    check(cudaStreamWaitEvent(to_cuda(stream), to_cuda(handle_), 0), "waiting for an event");
#endif
}

bool Event::is_done() const {
#if defined(TRIREME_ENABLE_CUDA)
  if (handle_ != nullptr && device_.kind == DeviceKind::cuda) {
    const cudaError_t error = cudaEventQuery(to_cuda(handle_));
    if (error == cudaErrorNotReady) {
      clear_launch_error();
      return false;
    }
    check(error, "querying an event");
    return true;
  }
#endif
  wait();
  return true;
}

void Event::wait() const {
  if (handle_ == nullptr) return;
  if (device_.kind == DeviceKind::emulated)
    emulated::wait(to_emulated_event(handle_)->stream, to_emulated_event(handle_)->number);
#if defined(TRIREME_ENABLE_CUDA)
  if (device_.kind != DeviceKind::cuda) return;
  // The calling thread may not be the one that uses the stream.
  check(cuda::select_device(device_.index), "selecting the device");
  check(cudaEventSynchronize(to_cuda(handle_)), "waiting for an event");
#endif
}

void Stopwatch::start(const Stream& stream) {
  started_ = monotonic_seconds();
  start_.record(stream);
}

void Stopwatch::stop(const Stream& stream) {
  stopped_ = monotonic_seconds();
  stop_.record(stream);
}

double Stopwatch::seconds() const {
#if defined(TRIREME_ENABLE_CUDA)
  if (stop_.device_.kind == DeviceKind::cuda)
    return cuda_seconds_between(start_.handle_, stop_.handle_);
#endif
  return stopped_ - started_;
}

DeviceMoment::DeviceMoment(Device device) : event_(device, true) {
  const OwnedStream stream(device);
  event_.record(stream);
  event_.wait();
  seconds_ = monotonic_seconds();
}

double DeviceMoment::start_of(const Stopwatch& stopwatch) const {
#if defined(TRIREME_ENABLE_CUDA)
  if (event_.device_.kind == DeviceKind::cuda)
    return seconds_ + cuda_seconds_between(event_.handle_, stopwatch.start_.handle_);
#endif
  return stopwatch.started_;
}

void copy_bytes(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  flush(stream);
  switch (stream.device.kind) {
    case DeviceKind::meta: return;
    case DeviceKind::cpu: std::memcpy(to, from, bytes); return;
    case DeviceKind::emulated: return emulated::copy(stream.handle, to, from, bytes);
    case DeviceKind::cuda: break;
  }
#if defined(TRIREME_ENABLE_CUDA)
  check(cuda::select_device(stream.device.index), "selecting the device");
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, to_cuda(stream)), "enqueuing a copy");
  // CUDA guarantees this wait only for some copies with pageable memory.
  if (is_ordinary_host(to) || is_ordinary_host(from)) synchronize(stream);
#endif
}

void synchronize(const Stream& stream) {
  flush(stream);
  if (stream.device.kind == DeviceKind::emulated)
    emulated::wait(stream.handle, emulated::last_item_number());
#if defined(TRIREME_ENABLE_CUDA)
  if (stream.device.kind == DeviceKind::cuda)
    check(cudaStreamSynchronize(to_cuda(stream)), "waiting for the device");
#endif
}

DeviceAccess::DeviceAccess(const Stream& stream)
    : opened_(stream.device.kind == DeviceKind::emulated) {
  if (opened_) emulated::begin_kernel(stream.handle);
}

DeviceAccess::~DeviceAccess() {
  if (opened_) emulated::end_kernel();
}

}  // namespace trireme
