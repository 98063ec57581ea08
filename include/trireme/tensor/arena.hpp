// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "trireme/device/device.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme {

/// Memory for one purpose (parameters, activations, workspace, ...), allocated from the device once
/// and handed out as a stack. allocate() only moves an offset, so it is free of cost during a step.
///
/// An arena on the meta device has no storage and no limit. Running the same calls on it measures
/// the required capacity (`peak_bytes`).
class Arena {
 public:
  // A cache line, as oneDNN and vector loads prefer.
  static constexpr std::int64_t alignment = 64;

  Arena() = default;
  /// Allocates the memory. `pages`: kind of host memory. Throws Failure if the memory is not
  /// available.
  Arena(Device device, std::string name, std::int64_t capacity_bytes,
        Pages pages = Pages::pageable);

  /// Returns a tensor on top of the stack, aligned to 64 bytes. Its elements have arbitrary values.
  /// Throws Failure with the arena's name and both sizes if the arena is too small, which is a bug
  /// in the memory plan.
  Tensor allocate(DType type, const Shape& shape);
  /// Returns the current top of the stack, for rewind(), which frees everything allocated later.
  std::int64_t mark() const { return used_; }
  void rewind(std::int64_t mark) {
    TRIREME_EXPECT(mark <= used_);
    used_ = mark;
  }

  /// For tests: calls `hook` with address and bytes of all memory that allocate() returns from now
  /// on, to fill it. Not on meta.
  void set_allocation_hook(std::function<void(void* data, std::int64_t bytes)> hook) {
    allocation_hook_ = std::move(hook);
  }

  const std::string& name() const { return name_; }
  Device device() const { return device_; }
  std::int64_t used_bytes() const { return used_; }
  std::int64_t peak_bytes() const { return peak_; }  ///< largest used_bytes() so far
  std::int64_t capacity_bytes() const { return capacity_; }

 private:
  Device device_;
  std::string name_;
  Allocation storage_;
  std::int64_t capacity_ = 0, used_ = 0, peak_ = 0;
  std::function<void(void*, std::int64_t)> allocation_hook_;
};

/// Frees at its end everything that was allocated from the arena during its lifetime.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.rewind(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  std::int64_t mark_;
};

}  // namespace trireme
