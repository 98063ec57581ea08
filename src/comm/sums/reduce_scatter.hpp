// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator_implementation.hpp"
#include "comm/engine/calls.hpp"
#include "rank_in_group.hpp"
#include "trireme/comm/engine/engine.hpp"

namespace trireme::comm {

/// A float32 sum over a group of which each rank receives its part, as a sequence of steps.
/// post() issues the calls of a step; complete() adds the received data once these calls have
/// ended.
class ReduceScatter {
 public:
  static constexpr const char* kind = "reduce_scatter";
  /// `data` points to the element at bounds.front() and is destroyed. `result`: this rank's part of
  /// the sum. `scratch`: all elements under SumOrder::tree, otherwise null. `bounds` must outlive
  /// the request.
  ReduceScatter(const RankInGroup& group, float* data, float* scratch,
                std::span<const std::int64_t> bounds, float* result, SumOrder order);

  int steps() const;
  void post(Calls& calls, int step) const;
  void complete(Calls& calls, int step) const;
  std::string describe(const Communicator::Implementation& group) const;

 private:
  /// - direct: in step k each rank sends to the rank k + 1 after it that rank's part, and adds the
  ///   part it receives. `result` is the receive buffer, so no scratch memory is needed.
  /// - halving: at level k the partners exchange the parts whose owners differ from them in bit k.
  ///   These parts are packed, because they are not contiguous. Adds every element in the order of
  ///   AllReduce.
  /// - chain: for other group sizes. Partial sums travel from rank 0 to the last rank, which sends
  ///   each rank its part.
  ///
  /// halving with 4 ranks; the letter is the owner of a part:
  ///
  ///   step     0 (rank^1)               1 (rank^2)
  ///   rank 0   sends 1 3, adds 0 2      sends 2, result = 0
  ///   rank 1   sends 0 2, adds 1 3      sends 3, result = 1
  enum class Algorithm : std::uint8_t { direct, halving, chain };

  void post_direct(Calls& calls, int step) const;
  void post_halving(Calls& calls, int level) const;
  void post_chain(Calls& calls, int step) const;
  void add_received(Calls& calls, int level) const;
  IndexRange part(int owner) const { return part_of(bounds_, owner); }
  /// halving: calls body(range) for the parts that this rank keeps at a level, or sends to its
  /// partner. The order is that of the owners.
  template <class Body>
  void for_each_part(int level, bool partners, Body&& body) const;
  /// halving: returns the number of elements in these parts.
  std::int64_t count_elements(int level, bool partners) const;

  RankInGroup group_;
  float *data_, *scratch_, *result_;
  std::span<const std::int64_t> bounds_;
  std::int64_t elements_;
  Algorithm algorithm_;
};

}  // namespace trireme::comm
