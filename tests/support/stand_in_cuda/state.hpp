#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "record.hpp"

namespace stand_in {

// Memory. A device's lies at addresses that the host may not touch; the stand-in reaches the same
// bytes at others.
struct Memory {
  std::byte* data;       ///< as the program knows it
  std::byte* host_data;  ///< where the stand-in reads and writes it; the same for pinned memory
  std::size_t bytes;
  int device;  ///< -1: pinned host memory
};
/// The allocation that holds this address.
std::optional<Memory> memory_at(const void* address);
/// Where the stand-in reaches `bytes` from `address` on, of the device (-1: of any kind); null, and
/// a fault, where that is no memory of one allocation.
std::byte* to_host_address(const void* address, std::size_t bytes, const std::string& what);
/// A fault where a communicator still knows of this memory.
void expect_unregistered(const void* address, std::size_t bytes);
/// A fault unless so much lies in the memory of this device.
void expect_on_device(const void* address, std::size_t bytes, int device, const std::string& what);

// Devices
int device_count();
int current_device();
/// Work of this thread that needs a context of its current device.
void touch_device(const char* by);

// Errors
/// Remembered until cudaGetLastError().
cudaError_t set_last_error(cudaError_t error);
/// What looks for the last error would take one for its own.
void expect_no_error(const char* by);

// Streams
/// The device of a stream; a fault where there is no such stream.
int device_of_stream(cudaStream_t stream, const char* by);

// Captures
/// What a stream is given: counted, or part of the graph that is made of the stream's work.
void count_on_stream(cudaStream_t stream, Counter what);
/// A fault where this thread captures a stream: nothing but a stream's kernels, products and plans
/// belongs into one of this program's graphs.
void expect_no_capture(const char* what);
/// A fault where a graph may still use it.
void expect_no_graph(const char* what);

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

/// The function of the library that this one stands before.
#define REAL_FUNCTION(name) stand_in::in_library<decltype(&name)>(#name)
#define STAND_IN_API extern "C" __attribute__((visibility("default")))
