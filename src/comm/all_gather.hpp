#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "calls.hpp"
#include "rank_in_group.hpp"

namespace trireme::comm {

/// Each rank's part, to every rank, in place, as a chain of steps. Groups of a power of two: at
/// level k the partners give each other all they hold, 2^k neighbouring parts; others: the parts go
/// round the ring.
class AllGather {
 public:
  static constexpr const char* kind = "all_gather";
  /// `data` stands at bounds.front().
  AllGather(const RankInGroup& group, std::byte* data, std::span<const std::int64_t> bounds)
      : group_(group), data_(data), bounds_(bounds), bytes_(bounds.back() - bounds.front()) {}

  int steps() const { return group_.is_power_of_two() ? group_.levels() : group_.size - 1; }
  void post(Calls& calls, int step) const;
  void complete(Calls&, int) const {}
  std::string describe() const;

 private:
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
