// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator_implementation.hpp"
#include "comm/engine/calls.hpp"
#include "rank_in_group.hpp"

namespace trireme::comm {

/// An in-place all-gather as a sequence of steps: post() issues the calls of a step.
///
/// Groups of a power of two use recursive doubling: in step k partners exchange the 2^k neighboring
/// parts that they own. Other groups use a ring with size - 1 steps. Every rank sends (size - 1) /
/// size of the data.
///
///   4 ranks   start    step 0     step 1
///   rank 0    A . . .  A B . .    A B C D
///   rank 1    . B . .  A B . .    A B C D
///   rank 2    . . C .  . . C D    A B C D
///   rank 3    . . . D  . . C D    A B C D
class AllGather {
 public:
  static constexpr const char* kind = "all_gather";
  /// `data` points to the byte at bounds.front(). `bounds` must outlive the request.
  AllGather(const RankInGroup& group, std::byte* data, std::span<const std::int64_t> bounds)
      : group_(group), data_(data), bounds_(bounds), bytes_(bounds.back() - bounds.front()) {}

  int steps() const { return group_.is_power_of_two() ? group_.levels() : group_.size - 1; }
  void post(Calls& calls, int step) const;
  void complete(Calls&, int) const {}
  std::string describe(const Communicator::Implementation& group) const;

 private:
  /// Returns the bytes of `count` neighboring parts, from rank `first` on.
  IndexRange parts(int first, int count) const {
    return {bounds_[static_cast<std::size_t>(first)] - bounds_.front(),
            bounds_[static_cast<std::size_t>(first + count)] - bounds_.front()};
  }

  RankInGroup group_;
  std::byte* data_;
  std::span<const std::int64_t> bounds_;
  std::int64_t bytes_;
};

}  // namespace trireme::comm
