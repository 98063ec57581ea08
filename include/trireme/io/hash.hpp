// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme::io {

/// Returns the 64-bit XXH3 hash with seed 0.
std::uint64_t xxh3(const void* data, std::size_t bytes);

/// Computes xxh3() over data that arrive in parts.
class Xxh3 {
 public:
  Xxh3();
  void reset();
  void update(const void* data, std::size_t bytes);
  std::uint64_t digest() const;

 private:
  struct FreeState {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, FreeState> state_;
};

}  // namespace trireme::io
