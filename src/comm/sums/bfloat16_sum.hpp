// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator_implementation.hpp"
#include "comm/engine/calls.hpp"
#include "rank_in_group.hpp"

namespace trireme::comm {

/// A float32 sum over a group whose parts are sent as bfloat16 (TransferType::bfloat16), as a
/// sequence of steps. The result is a sum on every rank, or one part on each rank.
///
/// Each rank adds one part in float32. It receives the rounded parts from the rank before it, then
/// from the one before that, and so on. An all_reduce then sends the rounded sums around the ring.
/// So each input and each final sum is rounded once, whatever the number of ranks.
///
///   3 ranks, rank 0 owns part a:
///   step 0        step 1        step 2           step 3
///   a += a(2)     a += a(1)     sends a to 1     sends c to 1
///   sends b to 1  sends c to 2  receives c       receives b
class Bfloat16Sum {
 public:
  const char* kind;
  /// all_reduce, in place. `transfer_buffer`: `count` elements.
  Bfloat16Sum(const RankInGroup& group, float* data, BFloat16* transfer_buffer, std::int64_t count);
  /// reduce_scatter into `result`. `data` points to the element at bounds.front() and is destroyed.
  /// `transfer_buffer` has as many elements as `data`.
  Bfloat16Sum(const RankInGroup& group, float* data, BFloat16* transfer_buffer,
              std::span<const std::int64_t> bounds, float* result);

  int steps() const { return is_reduce_scatter_ ? other_ranks() : 2 * other_ranks(); }
  void post(Calls& calls, int step) const;
  void complete(Calls& calls, int step) const;
  std::string describe(const Communicator::Implementation& group) const;

 private:
  int other_ranks() const { return group_.size - 1; }
  /// Returns the elements that rank `owner` adds.
  IndexRange part(int owner) const;
  void send(Calls& calls, const IndexRange& range, int to) const {
    calls.send(
        std::as_bytes(std::span(transfer_buffer_ + range.begin, transfer_buffer_ + range.end)), to);
  }
  void receive(Calls& calls, const IndexRange& range, int from) const {
    calls.receive(std::as_writable_bytes(
                      std::span(transfer_buffer_ + range.begin, transfer_buffer_ + range.end)),
                  from);
  }

  RankInGroup group_;
  float* data_;
  BFloat16* transfer_buffer_;
  std::int64_t count_;
  bool is_reduce_scatter_;
  std::span<const std::int64_t> bounds_;
  float* result_ = nullptr;
};

}  // namespace trireme::comm
