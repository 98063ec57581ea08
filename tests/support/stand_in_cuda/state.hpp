// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "record.hpp"

namespace stand_in {

// Memory. Device memory has addresses that the host cannot touch; the stand-in accesses the same
// bytes at other addresses.
struct Memory {
  std::byte* data;       ///< address that the program sees
  std::byte* host_data;  ///< address that the stand-in uses; equal for pinned memory
  std::size_t bytes;
  int device;  ///< -1: pinned host memory
};
/// Returns the allocation that contains the address.
std::optional<Memory> memory_at(const void* address);
/// Returns the stand-in's address of `bytes` bytes at `address`. Reports a fault and returns null
/// if they are not inside one allocation.
std::byte* to_host_address(const void* address, std::size_t bytes, const std::string& what);
/// Reports a fault if the memory is still registered with a communicator.
void expect_unregistered(const void* address, std::size_t bytes);
/// Reports a fault unless the bytes are inside an allocation on this device.
void expect_on_device(const void* address, std::size_t bytes, int device, const std::string& what);

// Devices
int device_count();
int current_device();
/// The time of all devices in milliseconds, which only add_time() changes. Work takes none, but two
/// events are measured as at least 1 ms apart.
double device_time();
void add_time(double milliseconds);
/// The cache preference of the device, last set by any thread.
cudaFuncCache cache_preference();
void set_cache_preference(cudaFuncCache preference);
/// Marks the use of a context of this thread's device.
void touch_device(const char* by);

enum class LaunchKind : std::uint8_t { kernel, product, plan };
/// Counts a launch. Returns the error, which is then the last one, if the device refuses it.
cudaError_t begin_launch(LaunchKind kind);
/// Returns whether the device has failed: every call then returns cudaErrorIllegalAddress.
bool is_broken();

/// Stores the error for cudaGetLastError() and returns it.
cudaError_t set_last_error(cudaError_t error);
/// Returns cudaErrorIllegalAddress, which is then the last error, if the device has failed.
inline cudaError_t device_state() {
  return is_broken() ? set_last_error(cudaErrorIllegalAddress) : cudaSuccess;
}
/// Reports a fault if an earlier error was not cleared: a check of the last error would attribute
/// it to the wrong call.
void expect_no_error(const char* by);

/// Returns the device of a stream. Reports a fault if the stream does not exist.
int device_of_stream(cudaStream_t stream, const char* by);

/// Counts work enqueued on a stream, or adds it to the graph that this thread captures.
void count_on_stream(cudaStream_t stream, Counter what);
/// Reports a fault if this thread captures a stream. Only kernels, matrix products and cuDNN plans
/// belong in a graph of this program.
void expect_no_capture(const char* what);
/// Reports a fault if a graph exists that may still use the memory.
void expect_no_graph(const char* what);

/// Report objects that were never destroyed, one text for each.
void report_graph_leaks(const std::function<void(const std::string&)>& report);
void report_leaks(const std::function<void(const std::string&)>& report);
void report_stream_leaks(const std::function<void(const std::string&)>& report);
void report_memory_leaks(const std::function<void(const std::string&)>& report);

}  // namespace stand_in

namespace stand_in {

template <class Function>
Function in_library(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace stand_in

/// The function of this name in the real library.
#define REAL_FUNCTION(name) stand_in::in_library<decltype(&name)>(#name)
#define STAND_IN_API extern "C" __attribute__((visibility("default")))
