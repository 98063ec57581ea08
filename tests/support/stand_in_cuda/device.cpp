// SPDX-License-Identifier: Apache-2.0
//
// Devices and errors of the stand-in: the selected device of each thread, the properties of an
// H200, the last error.
//
// A program that uses one device must not create a context on a second one; touch_device() reports
// that as a fault.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "record.hpp"
#include "state.hpp"

namespace stand_in {
namespace {

thread_local int selected_device = 0;
thread_local bool selected_by_thread = false;
thread_local cudaError_t last_error = cudaSuccess;
std::atomic<cudaFuncCache> preference_of_device = cudaFuncCachePreferNone;

}  // namespace

cudaError_t set_last_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void expect_no_error(const char* by) {
  if (last_error != cudaSuccess && !is_broken())
    fault(std::string(by) + ": the error of an earlier call was not cleared");
}

int device_count() {
  static const int count = std::getenv("STAND_IN_CUDA_DEVICES") == nullptr
                               ? 1
                               : std::atoi(std::getenv("STAND_IN_CUDA_DEVICES"));
  return count;
}

cudaFuncCache cache_preference() { return preference_of_device; }
void set_cache_preference(cudaFuncCache preference) { preference_of_device = preference; }

int current_device() { return selected_device; }

/// Reports a fault if this process creates a second context. A context takes hundreds of megabytes,
/// so a process that uses one device must select it in every thread.
void touch_device(const char* by) {
  static std::mutex mutex;
  static std::set<int> touched;
  const std::lock_guard lock(mutex);
  if (touched.insert(selected_device).second && touched.size() > 1)
    fault(std::string("a context on a second device, ") + std::to_string(selected_device) +
          (selected_by_thread ? "" : ", which this thread did not select") + ", made by " + by);
}

void report_leaks(const std::function<void(const std::string&)>& report) {
  report_memory_leaks(report);
  report_stream_leaks(report);
  report_graph_leaks(report);
}

}  // namespace stand_in

using namespace stand_in;

STAND_IN_API cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) {
    fault("the selected device does not exist");
    return cudaErrorInvalidDevice;
  }
  selected_device = device;
  selected_by_thread = true;
  touch_device("choosing it");
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaGetDevice(int* device) {
  *device = selected_device;
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count()) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "NVIDIA H200");
  std::memset(&properties->uuid, 0x10 + device, sizeof properties->uuid);
  properties->totalGlobalMem = std::size_t{141} << 30;
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 232448;
  properties->sharedMemPerMultiprocessor = 233472;
  properties->reservedSharedMemPerBlock = 1024;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->totalConstMem = 65536;
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->canMapHostMemory = properties->concurrentKernels = properties->unifiedAddressing =
      properties->managedMemory = 1;
  properties->concurrentManagedAccess = properties->streamPrioritiesSupported =
      properties->cooperativeLaunch = 1;
  properties->asyncEngineCount = 3;
  properties->l2CacheSize = 62914560;
  properties->pciBusID = device + 1;
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02x:00.0", device + 1);
  return device >= 0 && device < device_count() ? cudaSuccess : cudaErrorInvalidDevice;
}

/// Every device can access every other one.
STAND_IN_API cudaError_t cudaDeviceCanAccessPeer(int* possible, int device, int peer) {
  if (device < 0 || device >= device_count() || peer < 0 || peer >= device_count())
    return cudaErrorInvalidDevice;
  *possible = device != peer;
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

STAND_IN_API cudaError_t cudaGetLastError() {
  device_state();
  return std::exchange(last_error, cudaSuccess);
}
STAND_IN_API cudaError_t cudaPeekAtLastError() {
  device_state();
  return last_error;
}
STAND_IN_API const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "an error of the stand-in for CUDA";
}
STAND_IN_API const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the stand-in for CUDA";
}

STAND_IN_API cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache preference) {
  stand_in::set_cache_preference(preference);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
