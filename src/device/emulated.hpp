#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/device/device.hpp"

// A device that this host plays, for tests of the way data take. Kernels run at once; copies are as
// late as a device may make them. A stream makes its copies where something needs them that is
// ordered behind: a kernel on this stream, or on one that an event holds back behind it, or the
// waiting host. Pinned memory that a copy writes holds other values until the host has waited, and
// pinned memory that one reads may not change before that.

namespace trireme::emulated {

/// Memory that is protected but for open(), and known to device_of(). Null where there is none to
/// be had.
std::byte* allocate(Device device, std::size_t bytes);
/// As on CUDA, all that was given is made first.
void free(std::byte* data, std::size_t bytes);
/// Pinned memory that is about to be freed; likewise.
void release_pinned(const std::byte* data, std::size_t bytes);

/// What names a stream; no later one has the same name.
void* make_stream();

/// The end of what the streams have been given so far, a number that grows.
std::uint64_t last_item_number();
/// What `stream` is given from now on comes after what `other` was given until then.
void delay(void* stream, void* other, std::uint64_t until);
/// The host has waited for a stream up to this point. Throws Failure where memory that a copy was
/// reading has changed.
void wait(void* stream, std::uint64_t until);
/// How often the host has waited so far: each call of wait(), and each copy with a side in ordinary
/// host memory, which on CUDA waits whichever side it is.
std::uint64_t host_wait_count();

void copy(void* stream, void* to, const void* from, std::size_t bytes);

/// A kernel on this stream begins. Memory of all emulated devices may be touched from the first
/// open() to the last close().
void begin_kernel(void* stream);
void end_kernel();

}  // namespace trireme::emulated
