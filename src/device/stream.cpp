#include "trireme/device/stream.hpp"

#include <cstring>

#include "emulated.hpp"
#include "trireme/base/check.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace trireme {
namespace {

#if defined(TRIREME_ENABLE_CUDA)
void check(cudaError_t error, const char* what) { ensure(error == cudaSuccess, "CUDA: {}: {}", what, cudaGetErrorString(error)); }
cudaStream_t cuda(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t cuda(void* event) { return static_cast<cudaEvent_t>(event); }
#endif

/// An emulated device's event.
struct Point {
  void* stream = nullptr;
  std::uint64_t number = 0;
};

Point* point(void* handle) { return static_cast<Point*>(handle); }

}  // namespace

OwnedStream::OwnedStream(Device device, [[maybe_unused]] Priority priority) : stream_{device, nullptr} {
  if (device.kind == DeviceKind::emulated) stream_.handle = emulated::make_stream();
#if defined(TRIREME_ENABLE_CUDA)
  if (device.kind != DeviceKind::cuda) return;
  int least = 0, greatest = 0;
  cudaStream_t stream = nullptr;
  check(cudaSetDevice(device.index), "choosing the device");
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "making a stream");
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority == Priority::urgent ? greatest : least), "making a stream");
  stream_.handle = stream;
#endif
}

OwnedStream::~OwnedStream() {
  if (stream_.handle == nullptr) return;
  if (stream_.device.kind == DeviceKind::emulated) emulated::end_stream(stream_.handle);
#if defined(TRIREME_ENABLE_CUDA)
  if (stream_.device.kind == DeviceKind::cuda) cudaStreamDestroy(cuda(stream_));
#endif
}

Event::Event(Device device) : device_(device) {
  if (device.kind == DeviceKind::emulated) handle_ = new Point;
#if defined(TRIREME_ENABLE_CUDA)
  if (device.kind != DeviceKind::cuda) return;
  cudaEvent_t event = nullptr;
  check(cudaSetDevice(device.index), "choosing the device");
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  handle_ = event;
#endif
}

Event::~Event() {
  if (handle_ == nullptr) return;
  if (device_.kind == DeviceKind::emulated) delete point(handle_);
#if defined(TRIREME_ENABLE_CUDA)
  if (device_.kind == DeviceKind::cuda) cudaEventDestroy(cuda(handle_));
#endif
}

Event::Event(Event&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

void Event::record(const Stream& stream) {
  if (handle_ == nullptr) return;
  if (device_.kind == DeviceKind::emulated) *point(handle_) = {stream.handle, emulated::now(stream.handle)};
#if defined(TRIREME_ENABLE_CUDA)
  if (device_.kind == DeviceKind::cuda) check(cudaEventRecord(cuda(handle_), cuda(stream)), "recording an event");
#endif
}

void Event::hold_back([[maybe_unused]] const Stream& stream) const {
#if defined(TRIREME_ENABLE_CUDA)
  if (device_.kind == DeviceKind::cuda) check(cudaStreamWaitEvent(cuda(stream), cuda(handle_), 0), "waiting for an event");
#endif
}

bool Event::passed() const {
#if defined(TRIREME_ENABLE_CUDA)
  if (device_.kind == DeviceKind::cuda) {
    const cudaError_t error = cudaEventQuery(cuda(handle_));
    if (error == cudaErrorNotReady) return false;
    check(error, "asking for an event");
  }
#endif
  wait();
  return true;
}

void Event::wait() const {
  if (handle_ == nullptr) return;
  if (device_.kind == DeviceKind::emulated) emulated::wait(point(handle_)->stream, point(handle_)->number);
#if defined(TRIREME_ENABLE_CUDA)
  if (device_.kind == DeviceKind::cuda) check(cudaEventSynchronize(cuda(handle_)), "waiting for an event");
#endif
}

void copy_bytes(const Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  switch (stream.device.kind) {
    case DeviceKind::meta: return;
    case DeviceKind::cpu: std::memcpy(to, from, bytes); return;
    case DeviceKind::emulated: return emulated::copy(stream.handle, to, from, bytes);
    case DeviceKind::cuda: break;
  }
#if defined(TRIREME_ENABLE_CUDA)
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda(stream)), "a copy");
#endif
}

void fill_zero(const Stream& stream, void* to, std::size_t bytes) {
  if (bytes == 0 || stream.device.kind == DeviceKind::meta) return;
#if defined(TRIREME_ENABLE_CUDA)
  if (stream.device.kind == DeviceKind::cuda) return check(cudaMemsetAsync(to, 0, bytes, cuda(stream)), "writing zeros");
#endif
  const DeviceAccess access(stream);
  std::memset(to, 0, bytes);
}

void synchronize(const Stream& stream) {
  if (stream.device.kind == DeviceKind::emulated) emulated::wait(stream.handle, emulated::now(stream.handle));
#if defined(TRIREME_ENABLE_CUDA)
  if (stream.device.kind == DeviceKind::cuda) check(cudaStreamSynchronize(cuda(stream)), "waiting for the device");
#endif
}

DeviceAccess::DeviceAccess(const Stream& stream) : opened_(stream.device.kind == DeviceKind::emulated) {
  if (opened_) emulated::open();
}

DeviceAccess::~DeviceAccess() {
  if (opened_) emulated::close();
}

}  // namespace trireme
