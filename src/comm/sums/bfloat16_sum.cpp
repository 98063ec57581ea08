// SPDX-License-Identifier: Apache-2.0
//
// Implements Bfloat16Sum. Steps 0 .. size-2 reduce-scatter; all_reduce then gathers in size-1 more
// steps. Engine::State polls the request: post(0), complete(0), post(1), ...

#include "bfloat16_sum.hpp"

#include <fmt/format.h>

namespace trireme::comm {
namespace {

// Parts start at multiples of this many elements, so that kernels can load several at once.
constexpr std::int64_t part_alignment = 32;

}  // namespace

Bfloat16Sum::Bfloat16Sum(const RankInGroup& group, float* data, BFloat16* transfer_buffer,
                         std::int64_t count)
    : kind("all_reduce"),
      group_(group),
      data_(data),
      transfer_buffer_(transfer_buffer),
      count_(count),
      is_reduce_scatter_(false) {}

Bfloat16Sum::Bfloat16Sum(const RankInGroup& group, float* data, BFloat16* transfer_buffer,
                         std::span<const std::int64_t> bounds, float* result)
    : kind("reduce_scatter"),
      group_(group),
      data_(data),
      transfer_buffer_(transfer_buffer),
      count_(bounds.back() - bounds.front()),
      is_reduce_scatter_(true),
      bounds_(bounds),
      result_(result) {}

IndexRange Bfloat16Sum::part(int owner) const {
  if (is_reduce_scatter_) return part_of(bounds_, owner);
  const auto bound = [&](int rank) {
    return rank == group_.size ? count_
                               : count_ * rank / group_.size / part_alignment * part_alignment;
  };
  return {bound(owner), bound(owner + 1)};
}

// A rank does not send its own part, so its place in the transfer buffer receives the parts of the
// others.
void Bfloat16Sum::post(Calls& calls, int step) const {
  // 1. Rounds all parts once.
  if (step == 0) calls.narrow(data_, transfer_buffer_, count_);
  if (step < other_ranks()) {
    // 2. Reduce-scatter: direct exchange with the ranks at distance step + 1.
    receive(calls, part(group_.rank), group_.ring_previous(step + 1));
    send(calls, part(group_.ring_next(step + 1)), group_.ring_next(step + 1));
  } else {
    // 3. All-gather of the rounded sums around the ring.
    const int turn = step - other_ranks();
    receive(calls, part(group_.ring_previous(turn + 1)), group_.ring_previous());
    send(calls, part(group_.ring_previous(turn)), group_.ring_next());
  }
}

void Bfloat16Sum::complete(Calls& calls, int step) const {
  const IndexRange mine = part(group_.rank);
  if (step < other_ranks())
    calls.add(transfer_buffer_ + mine.begin, data_ + mine.begin, mine.size());
  if (step + 1 == other_ranks()) {
    if (is_reduce_scatter_)
      calls.copy(data_ + mine.begin, result_, mine.size());
    else
      calls.narrow(data_ + mine.begin, transfer_buffer_ + mine.begin, mine.size());
  }
  if (!is_reduce_scatter_ && step + 1 == steps()) calls.widen(transfer_buffer_, data_, count_);
}

std::string Bfloat16Sum::describe(const Communicator::Implementation& group) const {
  return fmt::format("{} bytes over {}, as bfloat16",
                     count_ * static_cast<std::int64_t>(sizeof(BFloat16)), group.describe());
}

}  // namespace trireme::comm
