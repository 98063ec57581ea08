// SPDX-License-Identifier: Apache-2.0
//
// Pinned host memory for requests on device memory. Called by Engine::State: the main thread
// submits and finishes, the polling thread checks and enqueues the copy back. The timeline is in
// staging.hpp.

#include "staging.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace trireme::comm {

Staging::Staging(const Stream& compute)
    : compute_(compute),
      copy_out_stream_(compute.device, OwnedStream::Priority::high),
      copy_in_stream_(compute.device, OwnedStream::Priority::high) {}

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
  // Its last copy back may still read the buffer.
  buffer.copied_in.wait();
  return buffer;
}

// The CUDA device is a property of each thread; a thread that has selected none would initialize
// device 0.
void Staging::select_device() const {
#if defined(TRIREME_ENABLE_CUDA)
  if (compute_.device.kind != DeviceKind::cuda) return;
  const cudaError_t error = cudaSetDevice(compute_.device.index);
  ensure(error == cudaSuccess, "CUDA cannot select the device: {}", cudaGetErrorString(error));
#endif
}

std::byte* StagingCopy::place(std::byte* place, std::size_t bytes) {
  if (!staged()) return place;
  TRIREME_EXPECT(bytes_placed_ + bytes <= buffer_->memory.bytes());
  std::byte* const host = buffer_->memory.data() + bytes_placed_;
  bytes_placed_ += (bytes + alignment - 1) / alignment * alignment;
  return host;
}

void StagingCopy::copy_out(void* host, const void* device, std::size_t bytes) {
  if (!staged() || bytes == 0) return;
  TRIREME_EXPECT(copy_out_.bytes == 0 && device_of(device) == staging_->compute().device);
  copy_out_ = {host, device, bytes};
}

void StagingCopy::copy_in(void* device, const void* host, std::size_t bytes) {
  if (!staged() || bytes == 0) return;
  TRIREME_EXPECT(copy_in_count_ < copies_in_.size() &&
                 device_of(device) == staging_->compute().device);
  copies_in_[copy_in_count_++] = {device, host, bytes};
}

void StagingCopy::enqueue_copy_out() {
  if (!staged()) return;
  buffer_->submitted.record(staging_->compute());
  if (copy_out_.bytes == 0) return;
  buffer_->submitted.delay(staging_->copy_out_stream());
  copy_bytes(staging_->copy_out_stream(), copy_out_.to, copy_out_.from, copy_out_.bytes);
  buffer_->copied_out.record(staging_->copy_out_stream());
}

bool StagingCopy::is_ready() const {
  if (!staged()) return true;
  staging_->select_device();
  return buffer_->copied_out.is_done();
}

void StagingCopy::enqueue_copy_in() {
  if (!staged() || copy_in_count_ == 0) return;
  staging_->select_device();
  buffer_->submitted.delay(staging_->copy_in_stream());
  for (std::size_t i = 0; i < copy_in_count_; ++i)
    copy_bytes(staging_->copy_in_stream(), copies_in_[i].to, copies_in_[i].from,
               copies_in_[i].bytes);
  buffer_->copied_in.record(staging_->copy_in_stream());
}

void StagingCopy::finish() {
  if (!staged()) return;
  buffer_->copied_in.delay(staging_->compute());
  staging_->release(*buffer_);
}

}  // namespace trireme::comm
