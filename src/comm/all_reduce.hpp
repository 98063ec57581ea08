#pragma once

#include <cstdint>
#include <string>

#include "calls.hpp"
#include "rank_in_group.hpp"
#include "trireme/comm/engine.hpp"

namespace trireme::comm {

/// A sum over a group, on every rank, as a chain of steps: each posts calls, and completes when
/// they have ended.
class AllReduce {
 public:
  static constexpr const char* kind = "all_reduce";
  AllReduce(const RankInGroup& group, float* data, float* scratch, std::int64_t count,
            SumOrder order);

  int steps() const;
  void post(Calls& calls, int step) const;
  void complete(Calls& calls, int step) const;
  std::string describe() const;

 private:
  /// library: MPI's own. exchange: whole vectors with rank^1, rank^2, ... halving: at each of these
  /// levels a rank keeps one half of what it held (reduce-scatter), then the halves come back the
  /// same way; every element is added up exactly as by `exchange`, with 2 vectors sent instead of
  /// log2(ranks). chain: groups that are no power of two: rank 0's part travels up, each rank adds
  /// its own, the sum travels down.
  enum class Algorithm : std::uint8_t { library, exchange, halving, chain };

  void post_halving(Calls& calls, int step) const;
  void post_chain(Calls& calls, int step) const;
  /// Halving: the half of `whole` that this rank keeps at a level, or its partner.
  IndexRange half(const IndexRange& whole, int level, bool partners) const;
  /// Halving: what this rank holds before a level.
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
