// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator_implementation.hpp"
#include "comm/engine/calls.hpp"
#include "trireme/comm/rank_axis.hpp"

namespace trireme::comm {

/// A float64 sum over a group (SumOrder::axes), result on every rank, as a sequence of steps.
/// post() issues the calls of a step; complete() adds the received data once these calls have
/// ended. The axes run one after the other.
///
/// An axis with a power of two of ranks exchanges whole vectors with position^1, position^2, ... in
/// log2(size) steps. Another axis climbs the tree of the halving and descends again, in
/// 2 ceil(log2(size)) steps. Both add lower + upper as base/tree.hpp does:
///
///   5 positions   step 0   step 1     step 2     step 3   step 4   step 5
///   position 0             adds 1     adds 2-4   to 2     to 1
///   position 1             to 0                           from 0
///   position 2             adds 3-4   to 0       from 0   to 3
///   position 3    adds 4   to 2                           from 2   to 4
///   position 4    to 3                                             from 3
class AxisSum {
 public:
  static constexpr const char* kind = "all_reduce";
  /// `scratch`: `count` values. `axes` must outlive the request.
  AxisSum(int rank, std::span<const RankAxis> axes, double* values, double* scratch,
          std::int64_t count);

  int steps() const { return steps_; }
  void post(Calls& calls, int step) const;
  void complete(Calls& calls, int step) const;
  std::string describe(const Communicator::Implementation& group) const;

 private:
  /// The messages of this rank in a step; -1: none in this direction.
  struct Exchange {
    int to = -1, from = -1;
    bool adds = false;
  };
  Exchange exchange(int step) const;
  /// Returns the exchange in a step of one axis. Ranks are positions on the axis.
  static Exchange exchange_on_axis(int size, int position, int step);
  static int steps_on_axis(int size);

  int rank_;
  std::span<const RankAxis> axes_;
  double *values_, *scratch_;
  std::int64_t count_;
  int steps_ = 0;
};

}  // namespace trireme::comm
