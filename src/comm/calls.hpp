#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rank_in_group.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::comm {

/// What the steps of a request post: messages to and from ranks of its group, a library's sum, and
/// work on its own memory. What is posted by one step may go at once and in any order, but that a
/// rank's messages to another arrive in the order posted; sums and copies of memory are made in the
/// order of the calls.
class Calls {
 public:
  virtual ~Calls() = default;
  /// What is empty is not sent.
  virtual void send(std::span<const std::byte> data, int to) = 0;
  virtual void receive(std::span<std::byte> data, int from) = 0;
  /// The library's own sum, in place: on all ranks of a group in the same order.
  virtual void all_reduce(float* data, std::int64_t count) = 0;
  /// to += from. Which of two ranks' parts is `to` does not change the bits.
  virtual void add(const float* from, float* to, std::int64_t count) = 0;
  virtual void add(const BFloat16* from, float* to, std::int64_t count) = 0;
  /// to = from.
  virtual void copy(const float* from, float* to, std::int64_t count) = 0;
  /// The same, rounded to the nearest; and back.
  virtual void narrow(const float* from, BFloat16* to, std::int64_t count) = 0;
  virtual void widen(const BFloat16* from, float* to, std::int64_t count) = 0;

  void send(const float* data, const IndexRange& range, int to) {
    send(std::as_bytes(std::span(data + range.begin, data + range.end)), to);
  }
  void receive(float* data, const IndexRange& range, int from) {
    receive(std::as_writable_bytes(std::span(data + range.begin, data + range.end)), from);
  }
};

}  // namespace trireme::comm
