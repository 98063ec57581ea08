// Replaces operator new by one that counts its calls.
//
// Linked to a test, it counts all calls except those from inside oneDNN, which allocates small
// objects in each execution (3.2: a map of arguments, a list of scratchpads).
//
// It is also a library that tests/system loads by LD_PRELOAD, and scripts/compare_work.py, which
// compiles it. Then the count is the 64-bit number in the file TRIREME_TEST_ALLOCATIONS. The file
// is mapped, so the count is complete however the program ends. Only calls from the program itself
// are counted: those from shared libraries (oneDNN, MPI, the parts of the C++ library that are not
// inlined) depend on the versions of a machine.
//
// A source of its own: if the compiler sees operator new or delete beside their callers and inlines
// one of them, it warns of mismatched allocation functions.

#include "count_allocations.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string_view>

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

/// Addresses of the machine code of the program or a shared library.
struct Code {
  std::uintptr_t begin = 0, end = 0;

  bool contains(const void* caller) const {
    const auto address = reinterpret_cast<std::uintptr_t>(caller);
    return address >= begin && address < end;
  }
};

Code program, onednn;
bool counts_only_program = false;
std::int64_t in_memory = 0;
std::int64_t* count = &in_memory;

/// Sets the addresses. The first object is the program.
int find_code(dl_phdr_info* object, std::size_t /*bytes*/, void* /*data*/) {
  const bool is_onednn =
      std::string_view(object->dlpi_name).find("libdnnl") != std::string_view::npos;
  Code& code = program.end == 0 ? program : onednn;
  if (program.end != 0 && !is_onednn) return 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    code.begin = object->dlpi_addr + segment.p_vaddr;
    code.end = code.begin + segment.p_memsz;
  }
  return is_onednn ? 1 : 0;  // 1 ends the iteration
}

__attribute__((constructor)) void begin_count() {
  dl_iterate_phdr(find_code, nullptr);
  const char* path = std::getenv("TRIREME_TEST_ALLOCATIONS");
  if (path == nullptr) return;
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof *count) != 0) std::abort();
  void* memory = mmap(nullptr, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) std::abort();
  close(file);
  counts_only_program = true;
  count = static_cast<std::int64_t*>(memory);
}

void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) {
  if (counts_only_program ? program.contains(caller) : !onednn.contains(caller))
    std::atomic_ref(*count).fetch_add(1, std::memory_order_relaxed);
  if (alignment == 0) return std::malloc(bytes == 0 ? 1 : bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment, const void* caller) {
  if (void* memory = allocate(bytes, alignment, caller)) return memory;
  throw std::bad_alloc();
}

}  // namespace

std::int64_t allocations_so_far() { return std::atomic_ref(*count).load(); }

#define TRIREME_CALLER __builtin_return_address(0)

// All forms: sanitizers require that they are replaced together.
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
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
