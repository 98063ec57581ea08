// Counts how often the code of a program calls operator new. Loaded by LD_PRELOAD in tests/system
// and by scripts/compare_work.py, which compiles it.
//
// The count is the 64-bit number in the file TRIREME_TEST_ALLOCATIONS. The file is mapped, so the
// count is complete however the program ends. Without the variable nothing is counted.
//
// Calls from shared libraries are not counted (oneDNN, MPI, the parts of the C++ library that are
// not inlined): they depend on the versions of a machine. Memory comes from malloc(), so that the
// operator delete of the C++ library can free it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

std::int64_t* count = nullptr;
std::uintptr_t code_begin = 0, code_end = 0;  // of the program

/// Sets the range of the code. The first object is the program: returning 1 ends the iteration.
int find_code(dl_phdr_info* object, std::size_t /*bytes*/, void* /*data*/) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    code_begin = object->dlpi_addr + segment.p_vaddr;
    code_end = code_begin + segment.p_memsz;
  }
  return 1;
}

__attribute__((constructor)) void begin_count() {
  const char* path = std::getenv("TRIREME_TEST_ALLOCATIONS");
  if (path == nullptr) return;
  dl_iterate_phdr(find_code, nullptr);
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof *count) != 0) std::abort();
  void* memory = mmap(nullptr, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) std::abort();
  close(file);
  count = static_cast<std::int64_t*>(memory);
}

void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  if (count != nullptr && address >= code_begin && address < code_end)
    std::atomic_ref(*count).fetch_add(1, std::memory_order_relaxed);
  if (alignment == 0) return std::malloc(bytes == 0 ? 1 : bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment, const void* caller) {
  if (void* memory = allocate(bytes, alignment, caller)) return memory;
  throw std::bad_alloc();
}

}  // namespace

#define TRIREME_CALLER __builtin_return_address(0)

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, 0, TRIREME_CALLER); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, 0, TRIREME_CALLER); }
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return allocate(bytes, 0, TRIREME_CALLER);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return allocate(bytes, 0, TRIREME_CALLER);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment), TRIREME_CALLER);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment), TRIREME_CALLER);
}
void* operator new(std::size_t bytes, std::align_val_t alignment,
                   const std::nothrow_t& /*tag*/) noexcept {
  return allocate(bytes, static_cast<std::size_t>(alignment), TRIREME_CALLER);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment,
                     const std::nothrow_t& /*tag*/) noexcept {
  return allocate(bytes, static_cast<std::size_t>(alignment), TRIREME_CALLER);
}
