#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "calls.hpp"
#include "rank_in_group.hpp"

namespace trireme::comm {

/// A sum over a group whose parts travel as bfloat16 (Wire::bfloat16), on every rank or to each its
/// shard, as a chain of steps. Each rank adds up one shard: it gets the others' parts of it one
/// after the other, from the rank before it, the one before that, ..., and sends each other rank
/// its own. A sum for all then goes round the ring. So a part is rounded once, and a sum that goes
/// round once.
class Bfloat16Sum {
 public:
  const char* kind;
  /// To every rank, in place. `wire`: count elements.
  Bfloat16Sum(const RankInGroup& group, float* data, BFloat16* transfer_buffer, std::int64_t count);
  /// `data` stands at bounds.front(), and has as many elements as `wire`.
  Bfloat16Sum(const RankInGroup& group, float* data, BFloat16* transfer_buffer,
              std::span<const std::int64_t> bounds, float* result);

  int steps() const { return is_reduce_scatter_ ? other_ranks() : 2 * other_ranks(); }
  void post(Calls& calls, int step) const;
  void complete(Calls& calls, int step) const;
  std::string describe() const;

 private:
  int other_ranks() const { return group_.size - 1; }
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
