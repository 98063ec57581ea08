// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator_implementation.hpp"
#include "comm/engine/calls.hpp"
#include "rank_in_group.hpp"
#include "trireme/comm/engine/engine.hpp"

namespace trireme::comm {

/// A float32 sum over a group, result on every rank, as a sequence of steps.
/// post() issues the calls of a step; complete() adds the received data once these calls have
/// ended.
class AllReduce {
 public:
  static constexpr const char* kind = "all_reduce";
  /// `scratch`: `count` floats under SumOrder::tree, otherwise null. `count` > 0.
  AllReduce(const RankInGroup& group, float* data, float* scratch, std::int64_t count,
            SumOrder order);

  int steps() const;
  void post(Calls& calls, int step) const;
  void complete(Calls& calls, int step) const;
  std::string describe(const Communicator::Implementation& group) const;

 private:
  /// - library: one MPI_Iallreduce.
  /// - exchange: whole vectors with rank^1, rank^2, ... in log2(size) steps. For short vectors.
  /// - halving: reduce-scatter by recursive halving, then all-gather by recursive doubling. Sends 2
  ///   vectors instead of log2(size) and adds every element in the order of `exchange`.
  /// - chain: for other group sizes. Partial sums travel from rank 0 to the last rank; the total
  ///   travels back.
  ///
  /// halving with 4 ranks and a vector of 4 quarters, numbered 0 to 3:
  ///
  ///   step     0 (rank^1)         1 (rank^2)        2 (rank^2)         3 (rank^1)
  ///   rank 0   adds quarters 0 1  adds quarter 0    receives 1         receives 2 3
  ///   rank 1   adds quarters 2 3  adds quarter 2    receives 3         receives 0 1
  enum class Algorithm : std::uint8_t { library, exchange, halving, chain };

  void post_halving(Calls& calls, int step) const;
  void post_chain(Calls& calls, int step) const;
  /// halving: returns the half of `whole` that this rank keeps at a level, or the half its partner
  /// keeps.
  IndexRange half(const IndexRange& whole, int level, bool partners) const;
  /// halving: returns the elements that this rank still adds before a level.
  IndexRange held(int level) const;
  void add_received(Calls& calls, const IndexRange& range) const {
    calls.add(scratch_ + range.begin, data_ + range.begin, range.size());
  }
  IndexRange all() const { return {0, count_}; }

  RankInGroup group_;
  float *data_, *scratch_;
  std::int64_t count_;
  Algorithm algorithm_;
};

}  // namespace trireme::comm
