// SPDX-License-Identifier: Apache-2.0
//
// Kernel launches of the stand-in: kernels are known by name, checked and counted, but never run.
//
// The code that nvcc generates registers kernels and variables through these functions
// (crt/host_runtime.h) and launches them.

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "record.hpp"
#include "state.hpp"

namespace stand_in {
namespace {

struct Kernels {
  std::mutex mutex;
  std::map<const void*, std::string> names;
  /// The dynamic shared memory that kernels have asked for.
  std::map<const void*, std::size_t> shared_bytes;
  std::map<const void*, std::pair<void*, std::size_t>> variables;
};

Kernels& kernels() {
  static auto* const all = new Kernels;
  return *all;
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> pushed_configurations;

std::string name_of(const void* function) {
  Kernels& k = kernels();
  const std::lock_guard lock(k.mutex);
  const auto found = k.names.find(function);
  if (found != k.names.end()) return found->second;
  fault("the launched kernel was never registered");
  return "";
}

/// Returns the largest dynamic shared memory that a launch of the kernel may have.
std::size_t max_shared_bytes(const void* function) {
  constexpr std::size_t without_asking = 49152;
  Kernels& k = kernels();
  const std::lock_guard lock(k.mutex);
  const auto found = k.shared_bytes.find(function);
  return found == k.shared_bytes.end() ? without_asking : found->second;
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments,
                   std::size_t shared, cudaStream_t stream) {
  const std::string name = name_of(function);
  const std::string short_name = name.substr(0, 120);
  expect_no_error("a launch");
  if (const cudaError_t error = begin_launch(LaunchKind::kernel); error != cudaSuccess)
    return error;
  count_on_stream(stream, Counter::launch);
  count_kernel(name);
  if (stream == nullptr) count_call(Counter::launch_on_default);
  if (device_of_stream(stream, "a launch") != current_device())
    fault("a kernel is launched on a stream of another device: " + short_name);
  const auto within = [](unsigned value, unsigned max) { return value >= 1 && value <= max; };
  if (!within(grid.x, 2147483647) || !within(grid.y, 65535) || !within(grid.z, 65535))
    fault("invalid grid size: " + short_name);
  if (!within(block.x, 1024) || !within(block.y, 1024) || !within(block.z, 64) ||
      block.x * block.y * block.z > 1024)
    fault("invalid block size: " + short_name);
  if (shared > max_shared_bytes(function))
    fault("shared memory exceeds the limit of a launch: " + short_name);
  if (arguments == nullptr) fault("a launch without arguments: " + short_name);
  // Kokkos runs kernels at its start, while it has set a cache preference: one to learn its
  // architecture, two to prepare its locks.
  const bool asks = name.find("query_cuda_kernel_arch") != std::string::npos,
             prepares = name.find("init_lock_array") != std::string::npos;
  if (!asks && !prepares && cache_preference() != cudaFuncCachePreferNone)
    fault("a kernel runs while the device has a cache preference: " + short_name);
  if (asks) {
    const int compiled_for = 900;
    if (std::byte* const to = to_host_address(*static_cast<void**>(arguments[0]),
                                              sizeof compiled_for, "asking for the architecture"))
      std::memcpy(to, &compiled_for, sizeof compiled_for);
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

STAND_IN_API void** __cudaRegisterFatBinary(void* binary) { return static_cast<void**>(binary); }
STAND_IN_API void __cudaRegisterFatBinaryEnd(void**) {}
STAND_IN_API void __cudaUnregisterFatBinary(void**) {}

STAND_IN_API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int,
                                         uint3*, uint3*, dim3*, dim3*, int*) {
  Kernels& k = kernels();
  const std::lock_guard lock(k.mutex);
  k.names[function] = name;
}

STAND_IN_API void __cudaRegisterVar(void**, char* variable, char*, const char*, int,
                                    std::size_t bytes, int, int) {
  Kernels& k = kernels();
  const std::lock_guard lock(k.mutex);
  k.variables[variable] = {nullptr, bytes};
}

STAND_IN_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                                  struct CUstream_st* stream) {
  pushed_configurations.push_back({grid, block, shared, stream});
  return 0;
}

STAND_IN_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared,
                                                    void* stream) {
  if (pushed_configurations.empty()) return cudaErrorMissingConfiguration;
  const Configuration last = pushed_configurations.back();
  pushed_configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

STAND_IN_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

STAND_IN_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                            void** arguments, std::size_t shared,
                                            cudaStream_t stream) {
  return launch(static_cast<const void*>(kernel), grid, block, arguments, shared, stream);
}

STAND_IN_API cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block,
                                          void** arguments, std::size_t shared,
                                          cudaStream_t stream) {
  return launch(function, grid, block, arguments, shared, stream);
}

STAND_IN_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes,
                                               const void* function) {
  if (name_of(function).empty()) return cudaErrorInvalidDeviceFunction;
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 40;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute,
                                              int value) {
  cudaDeviceProp properties;
  if (name_of(function).empty()) return cudaErrorInvalidDeviceFunction;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, current_device());
      error != cudaSuccess)
    return error;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<std::size_t>(value) > properties.sharedMemPerBlockOptin)
    return cudaErrorInvalidValue;
  Kernels& k = kernels();
  const std::lock_guard lock(k.mutex);
  k.shared_bytes[function] = static_cast<std::size_t>(value);
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) {
  count_call(Counter::cache_preference);
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaMemcpyToSymbol(const void* variable, const void*, std::size_t bytes,
                                            std::size_t offset, cudaMemcpyKind) {
  touch_device("a copy to a variable");
  count_call(Counter::blocking_copy);
  Kernels& k = kernels();
  const std::lock_guard lock(k.mutex);
  const auto found = k.variables.find(variable);
  if (found == k.variables.end() || offset + bytes > found->second.second)
    fault("the variable of a copy does not exist or is smaller");
  return cudaSuccess;
}

STAND_IN_API cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                                         cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}

STAND_IN_API cudaError_t cudaCreateTextureObject(cudaTextureObject_t*, const cudaResourceDesc*,
                                                 const cudaTextureDesc*,
                                                 const cudaResourceViewDesc*) {
  fault("a texture is requested");
  return cudaErrorNotSupported;
}
