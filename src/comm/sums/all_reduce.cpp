// SPDX-License-Identifier: Apache-2.0
//
// Implements AllReduce: chooses the algorithm and issues the calls of each step.
//
// Engine::State polls the request: post(0), complete(0), post(1), ... The library algorithm is one
// MPI_Iallreduce. The tree order uses the algorithms exchange and halving (powers of two) or chain
// (other groups).

#include "all_reduce.hpp"

#include <fmt/format.h>

namespace trireme::comm {
namespace {

// Below 16 KiB the latency of a message dominates, so fewer messages win over fewer bytes.
constexpr std::int64_t min_halving_elements = 4096;

}  // namespace

AllReduce::AllReduce(const RankInGroup& group, float* data, float* scratch, std::int64_t count,
                     SumOrder order)
    : group_(group), data_(data), scratch_(scratch), count_(count) {
  if (order == SumOrder::library)
    algorithm_ = Algorithm::library;
  else if (!group.is_power_of_two())
    algorithm_ = Algorithm::chain;
  else
    algorithm_ = count < min_halving_elements ? Algorithm::exchange : Algorithm::halving;
}

int AllReduce::steps() const {
  switch (algorithm_) {
    case Algorithm::library: return 1;
    case Algorithm::exchange: return group_.levels();
    case Algorithm::halving: return 2 * group_.levels();
    case Algorithm::chain: return 4;
  }
  return 0;
}

void AllReduce::post(Calls& calls, int step) const {
  switch (algorithm_) {
    case Algorithm::library: calls.all_reduce(data_, count_); return;
    case Algorithm::exchange:
      calls.receive(scratch_, all(), group_.partner(step));
      calls.send(data_, all(), group_.partner(step));
      return;
    case Algorithm::halving: post_halving(calls, step); return;
    case Algorithm::chain: post_chain(calls, step); return;
  }
}

IndexRange AllReduce::half(const IndexRange& whole, int level, bool partners) const {
  const std::int64_t middle = whole.begin + whole.size() / 2;
  return group_.is_upper(level) != partners ? IndexRange{middle, whole.end}
                                            : IndexRange{whole.begin, middle};
}

IndexRange AllReduce::held(int level) const {
  IndexRange range = all();
  for (int before = 0; before < level; ++before) range = half(range, before, false);
  return range;
}

void AllReduce::post_halving(Calls& calls, int step) const {
  const bool scattering = step < group_.levels();
  const int level = scattering ? step : 2 * group_.levels() - 1 - step;
  const IndexRange mine = half(held(level), level, false), theirs = half(held(level), level, true);
  if (scattering) {
    calls.receive(scratch_, mine, group_.partner(level));
    calls.send(data_, theirs, group_.partner(level));
  } else {
    calls.receive(data_, theirs, group_.partner(level));
    calls.send(data_, mine, group_.partner(level));
  }
}

void AllReduce::post_chain(Calls& calls, int step) const {
  const int rank = group_.rank, last = group_.size - 1;
  switch (step) {
    case 0: return rank > 0 ? calls.receive(scratch_, all(), rank - 1) : void();
    case 1: return rank < last ? calls.send(data_, all(), rank + 1) : void();
    case 2: return rank < last ? calls.receive(data_, all(), rank + 1) : void();
    default: return rank > 0 ? calls.send(data_, all(), rank - 1) : void();
  }
}

void AllReduce::complete(Calls& calls, int step) const {
  if (algorithm_ == Algorithm::exchange) add_received(calls, all());
  if (algorithm_ == Algorithm::halving && step < group_.levels())
    add_received(calls, held(step + 1));
  if (algorithm_ == Algorithm::chain && step == 0 && group_.rank > 0) add_received(calls, all());
}

std::string AllReduce::describe(const Communicator::Implementation& group) const {
  return fmt::format("{} bytes over {}, {} order", count_ * std::int64_t{sizeof(float)},
                     group.describe(), algorithm_ == Algorithm::library ? "library" : "tree");
}

}  // namespace trireme::comm
