// A steady training step allocates nothing with operator new, whatever the model and its options.
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support/replica.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

/// Returns whether an allocation was called from this program's own code, not from inside the
/// shared objects of oneDNN or the runtime.
bool from_own_code(const void* caller) {
  Dl_info info{};
  if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return true;
  Dl_info own{};
  dladdr(reinterpret_cast<const void*>(&from_own_code), &own);
  return info.dli_fbase == own.dli_fbase;
}

void* counted(std::size_t bytes, const void* caller) {
  if (counting.load(std::memory_order_relaxed)) {
    counting = false;  // dladdr may allocate.
    if (from_own_code(caller)) ++allocations;
    counting = true;
  }
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, __builtin_return_address(0)); }
void* operator new[](std::size_t bytes) { return counted(bytes, __builtin_return_address(0)); }
// Also called by libstdc++ of g++ 14. Sanitizers require that all forms are replaced together.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return counted(bytes, __builtin_return_address(0));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace trireme::train {
namespace {

long allocations_in_a_steady_step(const ReplicaOptions& options) {
  test::ReplicaFixture fixture(options);
  for (int step = 0; step < 3; ++step) {
    const bool steady = step == 2;
    allocations = 0;
    counting = steady;
    fixture.step(0.01);
    counting = false;
  }
  return allocations;
}

TEST(Allocation, IsSeenWhereItHappens) {
  allocations = 0;
  counting = true;
  std::vector<int>* vector = new std::vector<int>(100);
  counting = false;
  EXPECT_GE(allocations.load(), 1);
  delete vector;
}

TEST(Allocation, DoesNotHappenInASteadyStep) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's own allocations are seen here as the program's";
#endif
  EXPECT_EQ(allocations_in_a_steady_step(test::small_resnet()), 0);
  ReplicaOptions options = test::small_resnet(18, 8);
  options.compute = DType::bfloat16;
  options.accumulation = 2;
  options.global = 20;
  options.deterministic = true;
  EXPECT_EQ(allocations_in_a_steady_step(options), 0);
  options.compute = DType::float16;
  options.loss_scale.emplace();
  EXPECT_EQ(allocations_in_a_steady_step(options), 0);
  options = test::small_gpt();
  options.accumulation = 2;
  options.global = 4;
  options.recompute = 2;
  EXPECT_EQ(allocations_in_a_steady_step(options), 0);
  options.offload.activations = true;
  EXPECT_EQ(allocations_in_a_steady_step(options), 0);
  options.shard = parallel::ShardKind::parameters;
  options.offload.optimizer = options.offload.parameters = true;
  EXPECT_EQ(allocations_in_a_steady_step(options), 0);
}

}  // namespace
}  // namespace trireme::train
