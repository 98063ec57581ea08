// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/device/device.hpp"

// A device emulated on this host, for tests of data movement. Its memory is protected from the
// host. Kernels run at once; copies run as late as a real device could run them, so a missing wait
// shows up as wrong data.
//
// A copy is executed when something ordered after it needs it:
// - a kernel on the same stream,
// - a kernel on a stream that an event delays until after the copy,
// - a wait of the host.
//
//   host calls            copy(s, pinned <- device)   kernel on s        wait(s)
//   device memory         protected                   accessible         protected
//   copy                  enqueued                    executed           done
//   pinned memory shows   poison bytes 0xA5           poison bytes       the copied values
//
// Pinned memory that a copy reads must not change until the host has waited; wait() reports such a
// change.

namespace trireme::emulated {

/// Allocates zeroed memory that is accessible only between begin_kernel() and end_kernel(), and
/// registers it for device_of(). Returns null if no memory is available.
std::byte* allocate(Device device, std::size_t bytes);
/// Frees memory of allocate(). Like cudaFree, executes all enqueued work first.
void free(std::byte* data, std::size_t bytes);
/// Called before pinned host memory is freed. Executes all enqueued work first, then drops the
/// pending state of copies that use this memory.
void release_pinned(const std::byte* data, std::size_t bytes);

/// Returns the handle of a new stream. Handles are never reused.
void* make_stream();

/// Returns the number of the last enqueued work item. Numbers grow over all streams; events store
/// them.
std::uint64_t last_item_number();
/// Makes later work on `stream` run after the work on `other` up to number `until`.
void delay(void* stream, void* other, std::uint64_t until);
/// Blocks the host until the work on `stream` up to number `until` is done. Throws Failure if
/// pinned memory changed while a copy was reading it.
void wait(void* stream, std::uint64_t until);
/// Returns how often the host has waited: calls of wait(), plus copies with a side in pageable host
/// memory, because CUDA waits for these too. Tests assert on differences of it.
std::uint64_t host_wait_count();

/// Enqueues a copy. Waits for it if the destination is pageable host memory.
void copy(void* stream, void* to, const void* from, std::size_t bytes);

/// Starts a kernel on this stream: executes the stream's enqueued work and unprotects the memory of
/// all emulated devices. Calls nest, from any thread.
void begin_kernel(void* stream);
/// Ends a kernel. The last end_kernel() protects the memory again.
void end_kernel();

}  // namespace trireme::emulated
