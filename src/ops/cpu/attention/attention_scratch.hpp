// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace trireme::ops::cpu {

/// Cuts a thread's part of the workspace into arrays that begin at cache lines. Without memory it
/// only counts bytes.
class ScratchAllocator {
 public:
  explicit ScratchAllocator(std::byte* memory) : memory_(memory) {}
  template <class E>
  E* allocate(std::int64_t count) {
    E* const array = memory_ == nullptr ? nullptr : reinterpret_cast<E*>(memory_ + bytes_);
    bytes_ += (count * static_cast<std::int64_t>(sizeof(E)) + 63) / 64 * 64;
    return array;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace trireme::ops::cpu
