#include "support/count_allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

// In a separate file: if the compiler sees both functions and inlines one, it warns of mismatched
// allocation functions.
namespace {
std::atomic<std::int64_t> allocations{0};
}

std::int64_t allocations_so_far() { return allocations; }

// Sanitizers require that all forms are replaced together.
void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return operator new(bytes, std::nothrow);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
