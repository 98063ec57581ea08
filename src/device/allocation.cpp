// SPDX-License-Identifier: Apache-2.0
//
// Allocates and frees zeroed memory on the CPU (pageable or pinned), on CUDA and on the emulated
// device.
//
// The constructor dispatches on the kind of device and registers CUDA and pinned blocks in the
// memory map, so that device_of() and is_pinned() recognize their addresses. The destructor
// reverses this. Arenas and a few tests are the only callers; nothing is allocated during a step.

#include "trireme/device/device.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "emulated.hpp"
#include "memory_map.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/device/launch.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include "cuda.hpp"
#endif

namespace trireme {
namespace {

constexpr std::size_t alignment = 4096;
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

std::byte* allocate_host(std::size_t bytes) {
  const std::size_t align = bytes >= huge_page_bytes ? huge_page_bytes : alignment;
  void* data = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (data == nullptr) return nullptr;
  // Only a hint. Page faults with 4 KiB pages cost about a tenth of the time.
  if (align == huge_page_bytes) madvise(data, bytes, MADV_HUGEPAGE);
  // Gaps in flat buffers and optimizer state must be 0. The write also maps every page before the
  // first step.
  std::memset(data, 0, bytes);
  return static_cast<std::byte*>(data);
}

#if defined(TRIREME_ENABLE_CUDA)

std::byte* allocate_cuda(Device device, std::size_t bytes, std::string& why) {
  void* data = nullptr;
  cudaError_t error = cuda::select_device(device.index);
  if (error == cudaSuccess) error = cudaMalloc(&data, bytes);
  if (error == cudaSuccess) error = cudaMemset(data, 0, bytes);
  // Wait for the memset: our streams do not wait for the default stream that runs it.
  if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);
  if (error == cudaSuccess) return static_cast<std::byte*>(data);
  cudaFree(data);
  clear_launch_error();
  why = std::string(": ") + cudaGetErrorString(error);
  return nullptr;
}

void free_cuda(std::byte* data) { cudaFree(data); }

/// Returns null if the driver cannot pin more memory. Without a device, pinning has no use and the
/// memory is pageable.
std::byte* allocate_pinned(std::size_t bytes) {
  if (cuda_device_count() == 0) return allocate_host(bytes);
  void* data = nullptr;
  if (cuda::select_last_device() != cudaSuccess) return nullptr;
  if (cudaHostAlloc(&data, bytes, cudaHostAllocPortable) != cudaSuccess) {
    clear_launch_error();
    return nullptr;
  }
  std::memset(data, 0, bytes);
  return static_cast<std::byte*>(data);
}

void free_pinned(std::byte* data) {
  cuda_device_count() == 0 ? std::free(data) : static_cast<void>(cudaFreeHost(data));
}

#else

std::byte* allocate_cuda(Device, std::size_t, std::string& why) {
  why = ": this program was built without CUDA (preset cuda-release has it)";
  return nullptr;
}

void free_cuda(std::byte*) {}

std::byte* allocate_pinned(std::size_t bytes) { return allocate_host(bytes); }

void free_pinned(std::byte* data) { std::free(data); }

#endif

bool is_pinned_host(Device device, Pages pages) {
  return device.kind == DeviceKind::cpu && pages == Pages::pinned;
}

}  // namespace

Allocation::Allocation(Device device, std::size_t bytes, const std::string& what, Pages pages)
    : device_(device), bytes_(bytes), pages_(pages) {
  if (bytes == 0 || device.kind == DeviceKind::meta) return;
  std::string why;
  switch (device.kind) {
    case DeviceKind::meta: break;
    case DeviceKind::cpu:
      data_ = pages == Pages::pinned ? allocate_pinned(bytes) : allocate_host(bytes);
      break;
    case DeviceKind::cuda: data_ = allocate_cuda(device, bytes, why); break;
    case DeviceKind::emulated: data_ = emulated::allocate(device, bytes); break;
  }
  const std::string where = device.kind == DeviceKind::cpu ? "this host" : to_string(device);
  ensure(data_ != nullptr, "{}: no memory for {} on {}{}", what, format_bytes(bytes), where, why);
  if (device.kind == DeviceKind::cuda || is_pinned_host(device, pages))
    register_range({data_, bytes, device});
}

Allocation::~Allocation() {
  if (data_ == nullptr) return;
  if (is_pinned_host(device_, pages_)) emulated::release_pinned(data_, bytes_);
  if (device_.kind == DeviceKind::cuda || is_pinned_host(device_, pages_)) unregister_range(data_);
  switch (device_.kind) {
    case DeviceKind::meta: break;
    case DeviceKind::cpu: pages_ == Pages::pinned ? free_pinned(data_) : std::free(data_); break;
    case DeviceKind::cuda: free_cuda(data_); break;
    case DeviceKind::emulated: emulated::free(data_, bytes_); break;
  }
}

Allocation::Allocation(Allocation&& other) noexcept { *this = std::move(other); }

Allocation& Allocation::operator=(Allocation&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(pages_, other.pages_);
  return *this;
}

}  // namespace trireme
