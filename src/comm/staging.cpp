#include "staging.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace trireme::comm {

Staging::Staging(const Stream& compute)
    : compute_(compute),
      out_(compute.device, OwnedStream::Priority::high),
      in_(compute.device, OwnedStream::Priority::high) {}

Staging::Buffer& Staging::take(std::size_t bytes) {
  auto best = free_.end();
  for (auto buffer = free_.begin(); buffer != free_.end(); ++buffer) {
    const std::size_t has = (*buffer)->memory.bytes();
    if (has >= bytes && (best == free_.end() || has < (*best)->memory.bytes())) best = buffer;
  }
  if (best == free_.end()) {
    bytes_ += bytes;
    Buffer& made = buffers_.emplace_back(compute_.device, bytes);
    free_.reserve(buffers_.size());
    return made;
  }
  Buffer& buffer = **best;
  free_.erase(best);
  buffer.copied_in.wait();
  return buffer;
}

// The device of a thread is a number of the CUDA runtime's; a thread that has told none would wake
// up device 0.
void Staging::enter() const {
#if defined(TRIREME_ENABLE_CUDA)
  if (compute_.device.kind != DeviceKind::cuda) return;
  const cudaError_t error = cudaSetDevice(compute_.device.index);
  ensure(error == cudaSuccess, "CUDA: choosing the device: {}", cudaGetErrorString(error));
#endif
}

std::byte* Passage::place(std::byte* place, std::size_t bytes) {
  if (!staged()) return place;
  TRIREME_EXPECT(placed_ + bytes <= buffer_->memory.bytes());
  std::byte* const host = buffer_->memory.data() + placed_;
  placed_ += (bytes + alignment - 1) / alignment * alignment;
  return host;
}

void Passage::take_out(void* host, const void* device, std::size_t bytes) {
  if (!staged() || bytes == 0) return;
  TRIREME_EXPECT(out_.bytes == 0 && device_of(device) == staging_->compute().device);
  out_ = {host, device, bytes};
}

void Passage::bring_in(void* device, const void* host, std::size_t bytes) {
  if (!staged() || bytes == 0) return;
  TRIREME_EXPECT(coming_in_ < in_.size() && device_of(device) == staging_->compute().device);
  in_[coming_in_++] = {device, host, bytes};
}

void Passage::depart() {
  if (!staged()) return;
  buffer_->asked.record(staging_->compute());
  if (out_.bytes == 0) return;
  buffer_->asked.delay(staging_->out());
  copy_bytes(staging_->out(), out_.to, out_.from, out_.bytes);
  buffer_->copied_out.record(staging_->out());
}

bool Passage::ready() const {
  if (!staged()) return true;
  staging_->enter();
  return buffer_->copied_out.is_done();
}

void Passage::arrive() {
  if (!staged() || coming_in_ == 0) return;
  staging_->enter();
  buffer_->asked.delay(staging_->in());
  for (std::size_t i = 0; i < coming_in_; ++i)
    copy_bytes(staging_->in(), in_[i].to, in_[i].from, in_[i].bytes);
  buffer_->copied_in.record(staging_->in());
}

void Passage::join() {
  if (!staged()) return;
  buffer_->copied_in.delay(staging_->compute());
  staging_->give_back(*buffer_);
}

}  // namespace trireme::comm
