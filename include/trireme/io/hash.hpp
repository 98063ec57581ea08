#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme::io {

/// XXH3, 64 bits, seed 0.
std::uint64_t xxh3(const void* data, std::size_t bytes);

/// The same of bytes that come in parts.
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
