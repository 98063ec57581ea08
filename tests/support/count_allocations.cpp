// SPDX-License-Identifier: Apache-2.0
//
// Replaces operator new by one that counts its calls.
//
// Linked to a test, it counts the calls of the test and of Trireme. A call belongs to the code at
// its return address. Not counted are calls
// - from the shared libraries of other_libraries: oneDNN allocates small objects in each execution
//   (3.2: a map of arguments, a list of scratchpads), cuDNN a descriptor, the stand-in for CUDA its
//   records;
// - from functions of Kokkos that are compiled into the program or into libraries of ours, found by
//   their symbols. Its CUDA back end allocates a counter for each copy of an execution space (3.4).
//   Functions of Kokkos that contain a kernel of ours count as ours. A stripped library still has
//   the symbols that it exports; in a stripped program all of Kokkos counts.
// The C++ library and fmt allocate for their callers, so their calls count.
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

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string_view>

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

/// Addresses of the machine code of the program or a shared library.
struct Code {
  std::uintptr_t begin = 0, end = 0;

  bool contains(std::uintptr_t address) const { return address >= begin && address < end; }
};

/// Parts of the file names of libraries whose calls are their own.
constexpr std::array<std::string_view, 9> other_libraries{
    "libdnnl", "libkokkos", "libcudnn", "libcublas",    "libcudart",
    "libnccl", "libnv",     "libcuda.", "stand_in_cuda"};

/// The machine code of the program or of a shared library.
struct Object {
  Code code;
  bool is_other = false;  ///< of other_libraries
};

/// The program, and the libraries so far: cuDNN loads some of its own at their first use. Only
/// appended to, so that threads may read it.
std::array<Object, 512> objects;
std::atomic<std::size_t> object_count = 0;
std::mutex appending;
/// Functions of Kokkos in the program and its libraries, in the order of their addresses.
Code* kokkos = nullptr;
std::size_t kokkos_count = 0;
bool counts_only_program = false;
std::int64_t in_memory = 0;
std::int64_t* count = &in_memory;

/// Returns the object that contains an address, or null.
const Object* object_of(std::uintptr_t address) {
  const Object *const begin = objects.data(), *const end = begin + object_count;
  const Object* const found =
      std::find_if(begin, end, [&](const Object& object) { return object.code.contains(address); });
  return found == end ? nullptr : found;
}

/// Appends an object's code, unless it is known. The first object is the program.
int find_code(dl_phdr_info* info, std::size_t /*bytes*/, void* /*data*/) {
  const std::string_view path = info->dlpi_name, file = path.substr(path.rfind('/') + 1);
  const bool is_other =
      std::any_of(other_libraries.begin(), other_libraries.end(),
                  [&](std::string_view name) { return file.find(name) != std::string_view::npos; });
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0 || object_of(begin) != nullptr)
      continue;
    const std::size_t index = object_count;
    if (index == objects.size()) return 1;
    objects[index] = {{begin, begin + segment.p_memsz}, is_other};
    object_count = index + 1;
  }
  return 0;
}

/// Returns whether a function belongs to Kokkos alone, by its mangled name.
bool is_kokkos(std::string_view name) {
  return (name.starts_with("_ZN6Kokkos") || name.starts_with("_ZNK6Kokkos")) &&
         name.find("7trireme") == std::string_view::npos;
}

/// A file that is mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status{};
    if (file >= 0 && fstat(file, &status) == 0) {
      bytes_ = static_cast<std::size_t>(status.st_size);
      memory_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    if (memory_ == MAP_FAILED) std::abort();
    close(file);
  }
  ~MappedFile() { munmap(memory_, bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* begin() const { return static_cast<const char*>(memory_); }

 private:
  void* memory_ = MAP_FAILED;
  std::size_t bytes_ = 0;
};

/// Appends the functions of Kokkos in an object's symbols. `base`: the address of the object.
void add_kokkos(const char* path, std::uintptr_t base) {
  const MappedFile file(path);
  const auto* const header = reinterpret_cast<const ElfW(Ehdr)*>(file.begin());
  const auto* const sections = reinterpret_cast<const ElfW(Shdr)*>(file.begin() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    const auto& section = sections[i];
    if (section.sh_type != SHT_SYMTAB && section.sh_type != SHT_DYNSYM) continue;
    const auto* const symbols =
        reinterpret_cast<const ElfW(Sym)*>(file.begin() + section.sh_offset);
    const char* const names = file.begin() + sections[section.sh_link].sh_offset;
    const std::size_t symbol_count = section.sh_size / sizeof *symbols;
    // Not by operator new, which is counted here.
    kokkos =
        static_cast<Code*>(std::realloc(kokkos, (kokkos_count + symbol_count) * sizeof *kokkos));
    if (kokkos == nullptr) std::abort();
    std::for_each(symbols, symbols + symbol_count, [&](const ElfW(Sym) & symbol) {
      if ((symbol.st_info & 0xF) != STT_FUNC || symbol.st_size == 0 || symbol.st_value == 0 ||
          !is_kokkos(names + symbol.st_name))
        return;
      const std::uintptr_t first = base + symbol.st_value;
      kokkos[kokkos_count++] = {first, first + symbol.st_size};
    });
  }
}

/// Finds the functions of Kokkos in the program (which has no name here) and the libraries of ours.
int find_kokkos(dl_phdr_info* info, std::size_t /*bytes*/, void* /*data*/) {
  const std::string_view path = info->dlpi_name;
  if (path.empty())
    add_kokkos("/proc/self/exe", info->dlpi_addr);
  else if (path.find("libtrireme_") != std::string_view::npos)
    add_kokkos(info->dlpi_name, info->dlpi_addr);
  return 0;
}

/// Returns whether the call is one of Trireme's or of the test's.
bool is_ours(std::uintptr_t caller) {
  const Object* object = object_of(caller);
  if (object == nullptr) {
    const std::lock_guard lock(appending);
    dl_iterate_phdr(find_code, nullptr);
    object = object_of(caller);
  }
  if (object != nullptr && object->is_other) return false;
  const Code* const after = std::upper_bound(
      kokkos, kokkos + kokkos_count, caller,
      [](std::uintptr_t address, const Code& code) { return address < code.begin; });
  return after == kokkos || !after[-1].contains(caller);
}

__attribute__((constructor)) void begin_count() {
  dl_iterate_phdr(find_code, nullptr);
  const char* path = std::getenv("TRIREME_TEST_ALLOCATIONS");
  if (path == nullptr) {
    dl_iterate_phdr(find_kokkos, nullptr);
    std::sort(kokkos, kokkos + kokkos_count,
              [](const Code& a, const Code& b) { return a.begin < b.begin; });
    return;
  }
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof *count) != 0) std::abort();
  void* memory = mmap(nullptr, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) std::abort();
  close(file);
  counts_only_program = true;
  count = static_cast<std::int64_t*>(memory);
}

void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  if (counts_only_program ? objects[0].code.contains(address) : is_ours(address))
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
