#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "calls.hpp"
#include "rank_in_group.hpp"
#include "trireme/comm/engine.hpp"

namespace trireme::comm {

/// A sum over a group of which each rank takes its shard, as a chain of steps.
class ReduceScatter {
 public:
  static constexpr const char* kind = "reduce_scatter";
  /// `data` stands at bounds.front().
  ReduceScatter(const RankInGroup& group, float* data, float* scratch,
                std::span<const std::int64_t> bounds, float* result, SumOrder order);

  int steps() const;
  void post(Calls& calls, int step) const;
  void complete(Calls& calls, int step) const;
  std::string describe() const;

 private:
  /// direct: each rank sends each shard to its owner, who adds as they come from the ranks before
  /// it: nothing is sent twice, and the result's memory is enough to receive. halving: at level k
  /// the partners give each other the shards whose owners are on the other's side of bit k (packed:
  /// they are not contiguous), so each element is added up as by AllReduce. chain: groups that are
  /// no power of two: rank 0's part travels up, each rank adds its own, the last gives each rank
  /// its shard.
  enum class Algorithm : std::uint8_t { direct, halving, chain };

  void post_direct(Calls& calls, int step) const;
  void post_halving(Calls& calls, int level) const;
  void post_chain(Calls& calls, int step) const;
  void add_received(Calls& calls, int level) const;
  IndexRange part(int owner) const { return part_of(bounds_, owner); }
  /// Halving: calls body(shard) for those that this rank keeps at a level, or gives to its partner,
  /// in the order of their owners.
  template <class Body>
  void for_each_part(int level, bool partners, Body&& body) const;
  std::int64_t count_elements(int level, bool partners) const;

  RankInGroup group_;
  float *data_, *scratch_, *result_;
  std::span<const std::int64_t> bounds_;
  std::int64_t elements_;
  Algorithm algorithm_;
};

}  // namespace trireme::comm
