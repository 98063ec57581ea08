#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/device/device.hpp"

// A device that this host plays, for tests of the way data take. Kernels run at once; copies are strict where a device is late: pinned memory that a
// copy writes holds other values until the host has waited for it, and pinned memory that a copy reads may not change before that.

namespace trireme::emulated {

/// Protected but for DeviceAccess. Null where there is none to be had.
std::byte* allocate(std::size_t bytes);
void free(std::byte* data, std::size_t bytes);

void* make_stream();
void end_stream(void* stream);

/// The end of what a stream has been given so far, a number that grows.
std::uint64_t now(void* stream);
/// The host has waited for a stream up to this point. Throws Failure where memory that a copy was reading has changed.
void wait(void* stream, std::uint64_t until);

void copy(void* stream, void* to, const void* from, std::size_t bytes);

/// Memory of all emulated devices may be touched from the first open() to the last close().
void open();
void close();

}  // namespace trireme::emulated
