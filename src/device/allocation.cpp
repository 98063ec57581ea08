#include "trireme/device/device.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace trireme {
namespace {

constexpr std::size_t alignment = 4096;
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

std::byte* allocate_host(std::size_t bytes) {
  const std::size_t align = bytes >= huge_page_bytes ? huge_page_bytes : alignment;
  void* data = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (data == nullptr) return nullptr;
  if (align == huge_page_bytes) madvise(data, bytes, MADV_HUGEPAGE);  // only a wish: page faults cost a tenth
  std::memset(data, 0, bytes);  // gaps of flat buffers and slots start at 0; and every page is there before the first step
  return static_cast<std::byte*>(data);
}

}  // namespace

Allocation::Allocation(Device device, std::size_t bytes, const std::string& what) : device_(device), bytes_(bytes) {
  if (bytes == 0 || device.kind == DeviceKind::meta) return;
  if (device.kind == DeviceKind::cpu) {
    data_ = allocate_host(bytes);
    ensure(data_ != nullptr, "{}: no memory for {} on this host", what, format_bytes(static_cast<double>(bytes)));
    return;
  }
#if defined(TRIREME_ENABLE_CUDA)
  void* data = nullptr;
  cudaError_t error = cudaSetDevice(device.index);
  if (error == cudaSuccess) error = cudaMalloc(&data, bytes);
  if (error == cudaSuccess) error = cudaMemset(data, 0, bytes);
  ensure(error == cudaSuccess, "{}: no memory for {} on {}: {}", what, format_bytes(static_cast<double>(bytes)), to_string(device), cudaGetErrorString(error));
  data_ = static_cast<std::byte*>(data);
#else
  throw Failure(what + ": this program was built without CUDA (preset cuda-release has it)");
#endif
}

Allocation::~Allocation() {
  if (data_ == nullptr) return;
  if (device_.kind == DeviceKind::cpu) std::free(data_);
#if defined(TRIREME_ENABLE_CUDA)
  if (device_.kind == DeviceKind::cuda) cudaFree(data_);
#endif
}

Allocation::Allocation(Allocation&& other) noexcept { *this = std::move(other); }

Allocation& Allocation::operator=(Allocation&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace trireme
