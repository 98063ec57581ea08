// SPDX-License-Identifier: Apache-2.0
//
// Memory of the stand-in: device memory that the host cannot touch, pinned memory, copies and
// memsets.
//
// Each device allocation is one file mapped twice: without access at the address that the program
// sees, and readable at the address that the stand-in uses. A copy, memset or library call with a
// wrong address is a fault. Copies are real and complete at once.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "record.hpp"
#include "state.hpp"

namespace stand_in {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t device_bytes = std::size_t{141} << 30;

struct Entry : Memory {
  int file = -1;
};

struct Memories {
  std::mutex mutex;
  std::map<const std::byte*, Entry> all;
  std::size_t taken = 0;
};

Memories& memories() {
  static auto* const all = new Memories;
  return *all;
}

/// Returns the first byte of the page of an address.
std::byte* page_begin(const void* address) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(address) / page * page);
}

std::size_t rounded(std::size_t bytes) { return (bytes + page - 1) / page * page; }

cudaError_t allocate(void** address, std::size_t bytes, int device) {
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  touch_device("an allocation");
  Entry entry;
  entry.bytes = bytes;
  entry.device = device;
  Memories& m = memories();
  const std::lock_guard lock(m.mutex);
  if (device >= 0 && m.taken + bytes > device_bytes) return cudaErrorMemoryAllocation;
  if (device >= 0) {
    entry.file = memfd_create("device memory", MFD_CLOEXEC);
    if (entry.file < 0 || ftruncate(entry.file, static_cast<off_t>(rounded(bytes))) != 0)
      return cudaErrorMemoryAllocation;
    entry.data = static_cast<std::byte*>(
        mmap(nullptr, rounded(bytes), PROT_NONE, MAP_SHARED, entry.file, 0));
    entry.host_data = static_cast<std::byte*>(
        mmap(nullptr, rounded(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, entry.file, 0));
    m.taken += bytes;
  } else {
    entry.data = entry.host_data = static_cast<std::byte*>(
        mmap(nullptr, rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  m.all[entry.data] = entry;
  *address = entry.data;
  return cudaSuccess;
}

cudaError_t release(void* address, bool device) {
  if (address == nullptr) return cudaSuccess;
  Memories& m = memories();
  const std::lock_guard lock(m.mutex);
  const auto found = m.all.find(static_cast<std::byte*>(address));
  if (found == m.all.end() || (found->second.device >= 0) != device) {
    fault(std::string("freed memory does not exist or is of another kind: ") +
          (device ? "cudaFree" : "cudaFreeHost"));
    return cudaErrorInvalidValue;
  }
  const Entry& entry = found->second;
  expect_unregistered(entry.data, entry.bytes);
  munmap(entry.data, rounded(entry.bytes));
  if (entry.file >= 0) {
    munmap(entry.host_data, rounded(entry.bytes));
    close(entry.file);
    m.taken -= entry.bytes;
  }
  m.all.erase(found);
  return cudaSuccess;
}

bool holds(const Memory& memory, const void* address, std::size_t bytes) {
  const auto* const at = static_cast<const std::byte*>(address);
  return at >= memory.data && at + bytes <= memory.data + memory.bytes;
}

/// Returns the address at which the stand-in reads or writes one side of a copy. Pageable host
/// memory is used in place. Reports a fault and returns null for memory that does not exist.
std::byte* side_of_copy(const void* address, std::size_t bytes, bool& pageable, const char* what) {
  const auto memory = memory_at(address);
  pageable = !memory;
  if (memory) return to_host_address(address, bytes, what);
  unsigned char resident;
  if (mincore(page_begin(address), page, &resident) != 0) {
    fault(std::string(what) + ": the memory does not exist or was freed");
    return nullptr;
  }
  return static_cast<std::byte*>(const_cast<void*>(address));
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 bool& pageable) {
  bool to_host = false, from_host = false;
  std::byte* const destination = side_of_copy(to, bytes, to_host, "a copy's destination");
  const std::byte* const source = side_of_copy(from, bytes, from_host, "a copy's source");
  if (destination == nullptr || source == nullptr) return cudaErrorInvalidValue;
  pageable = to_host || from_host;
  const auto on_device = [](const void* address) {
    const auto memory = memory_at(address);
    return memory && memory->device >= 0;
  };
  const bool right =
      kind == cudaMemcpyDefault ||
      (on_device(to) == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
       on_device(from) == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
  if (!right) fault("the direction of a copy does not match its kind");
  if (destination < source + bytes && source < destination + bytes && bytes > 0)
    fault("source and destination of a copy overlap");
  std::memmove(destination, source, bytes);
  return cudaSuccess;
}

cudaError_t fill_memory(void* address, int value, std::size_t bytes) {
  std::byte* const data = to_host_address(address, bytes, "a memset");
  if (data == nullptr) return cudaErrorInvalidValue;
  if (value == 0 && memory_at(address)->device >= 0) {
    // Whole pages are replaced by zeros when they are next read.
    std::byte* const end = data + bytes;
    std::byte* const first_page = std::min(page_begin(data + page - 1), end);
    std::byte* const last_page = std::max(page_begin(end), first_page);
    std::memset(data, 0, static_cast<std::size_t>(first_page - data));
    if (first_page != last_page)
      madvise(first_page, static_cast<std::size_t>(last_page - first_page), MADV_REMOVE);
    std::memset(last_page, 0, static_cast<std::size_t>(end - last_page));
  } else {
    std::memset(data, value, bytes);
  }
  count_call(Counter::memory_fill);
  return cudaSuccess;
}

}  // namespace

std::optional<Memory> memory_at(const void* address) {
  Memories& m = memories();
  const std::lock_guard lock(m.mutex);
  auto after = m.all.upper_bound(static_cast<const std::byte*>(address));
  if (after == m.all.begin()) return {};
  const Entry& entry = std::prev(after)->second;
  return holds(entry, address, 1) ? std::optional<Memory>(entry) : std::nullopt;
}

std::byte* to_host_address(const void* address, std::size_t bytes, const std::string& what) {
  const auto memory = memory_at(address);
  if (memory && holds(*memory, address, bytes))
    return memory->host_data + (static_cast<const std::byte*>(address) - memory->data);
  fault(what + (memory ? ": beyond the end of an allocation" : ": not device memory"));
  return nullptr;
}

void expect_on_device(const void* address, std::size_t bytes, int device, const std::string& what) {
  const auto memory = memory_at(address);
  if (!memory) return fault(what + ": not device memory");
  if (memory->device != device) return fault(what + ": memory of the host or of another device");
  if (!holds(*memory, address, bytes)) fault(what + ": beyond the end of an allocation");
}

void report_memory_leaks(const std::function<void(const std::string&)>& report) {
  Memories& m = memories();
  for (const auto& [address, entry] : m.all)
    report(std::string(entry.device >= 0 ? "device" : "pinned") +
           " memory was never freed: " + std::to_string(entry.bytes) + " bytes");
}

}  // namespace stand_in

using namespace stand_in;

STAND_IN_API cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  if (is_broken()) return device_state();
  count_call(Counter::allocation);
  return allocate(address, bytes, current_device());
}

STAND_IN_API cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = device_bytes;
  *free = device_bytes - memories().taken;
  return device_state();
}

STAND_IN_API cudaError_t cudaMallocManaged(void** address, std::size_t bytes, unsigned) {
  fault("managed memory is requested");
  return allocate(address, bytes, -1);
}

STAND_IN_API cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  if (is_broken()) return device_state();
  count_call(Counter::pinned_allocation);
  return allocate(address, bytes, -1);
}

STAND_IN_API cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
  return cudaHostAlloc(address, bytes, 0);
}

STAND_IN_API cudaError_t cudaFree(void* address) {
  if (is_broken()) return device_state();
  count_call(Counter::release);
  expect_no_graph("device memory is freed");
  return release(address, true);
}

STAND_IN_API cudaError_t cudaFreeHost(void* address) {
  if (is_broken()) return device_state();
  count_call(Counter::pinned_release);
  return release(address, false);
}

STAND_IN_API cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes,
                                         cudaMemcpyKind kind, cudaStream_t stream) {
  if (is_broken()) return device_state();
  device_of_stream(stream, "a copy");
  bool pageable = false;
  const cudaError_t error = copy(to, from, bytes, kind, pageable);
  count_call(Counter::copy);
  if (pageable) count_call(Counter::pageable_copy);
  return error;
}

STAND_IN_API cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes,
                                    cudaMemcpyKind kind) {
  if (is_broken()) return device_state();
  touch_device("a copy");
  bool pageable = false;
  count_call(Counter::blocking_copy);
  return copy(to, from, bytes, kind, pageable);
}

STAND_IN_API cudaError_t cudaMemset(void* address, int value, std::size_t bytes) {
  if (is_broken()) return device_state();
  touch_device("a memset");
  return fill_memory(address, value, bytes);
}

STAND_IN_API cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes,
                                         cudaStream_t stream) {
  if (is_broken()) return device_state();
  device_of_stream(stream, "a memset");
  return fill_memory(address, value, bytes);
}

#if CUDART_VERSION >= 13000
STAND_IN_API cudaError_t cudaMemPrefetchAsync(const void*, std::size_t, cudaMemLocation, unsigned,
                                              cudaStream_t) {
  return cudaSuccess;
}
#else
STAND_IN_API cudaError_t cudaMemPrefetchAsync(const void*, std::size_t, int, cudaStream_t) {
  return cudaSuccess;
}
#endif

STAND_IN_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                  const void* address) {
  *attributes = {};
  const auto memory = memory_at(address);
  attributes->type = !memory               ? cudaMemoryTypeUnregistered
                     : memory->device >= 0 ? cudaMemoryTypeDevice
                                           : cudaMemoryTypeHost;
  attributes->device = memory && memory->device >= 0 ? memory->device : 0;
  attributes->devicePointer = memory ? const_cast<void*>(address) : nullptr;
  attributes->hostPointer = memory && memory->device >= 0 ? nullptr : const_cast<void*>(address);
  return cudaSuccess;
}
