#pragma once

#include <cstdint>
#include <string>

#include "trireme/device/device.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme {

/// Memory of one purpose (parameters, activations, workspace ...), taken from the device once and
/// handed out as a stack. A meta arena has no storage and no limit: it tells how large the real one
/// must be (`peak_bytes`). Handing out allocates nothing.
class Arena {
 public:
  static constexpr std::int64_t alignment =
      64;  // a cache line, and what oneDNN and vector loads like

  Arena() = default;
  /// `pages`: of host memory.
  Arena(Device device, std::string name, std::int64_t capacity_bytes,
        Pages pages = Pages::pageable);

  /// Throws Failure where the arena is too small (a bug in the sizing run: the message names the
  /// arena and both sizes).
  Tensor allocate(DType type, const Shape& shape);
  std::int64_t mark() const { return used_; }
  void rewind(std::int64_t mark) {
    TRIREME_EXPECT(mark <= used_);
    used_ = mark;
  }

  const std::string& name() const { return name_; }
  Device device() const { return device_; }
  std::int64_t used_bytes() const { return used_; }
  std::int64_t peak_bytes() const { return peak_; }
  std::int64_t capacity_bytes() const { return capacity_; }

 private:
  Device device_;
  std::string name_;
  Allocation storage_;
  std::int64_t capacity_ = 0, used_ = 0, peak_ = 0;
};

/// Gives back at its end what was taken from the arena during its life.
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
