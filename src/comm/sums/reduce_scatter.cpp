// SPDX-License-Identifier: Apache-2.0
//
// Implements ReduceScatter: chooses the algorithm and issues the calls of each step.
//
// Engine::State polls the request: post(0), complete(0), post(1), ... The last complete() writes
// `result`. SumOrder::library uses direct; the tree order uses halving (powers of two) or chain
// (other groups).

#include "reduce_scatter.hpp"

#include <fmt/format.h>

namespace trireme::comm {

ReduceScatter::ReduceScatter(const RankInGroup& group, float* data, float* scratch,
                             std::span<const std::int64_t> bounds, float* result, SumOrder order)
    : group_(group),
      data_(data),
      scratch_(scratch),
      result_(result),
      bounds_(bounds),
      elements_(bounds.back() - bounds.front()) {
  if (order == SumOrder::library)
    algorithm_ = Algorithm::direct;
  else
    algorithm_ = group.is_power_of_two() ? Algorithm::halving : Algorithm::chain;
}

int ReduceScatter::steps() const {
  switch (algorithm_) {
    case Algorithm::direct: return group_.size - 1;
    case Algorithm::halving: return group_.levels();
    case Algorithm::chain: return group_.rank == group_.size - 1 ? 1 + group_.rank : 3;
  }
  return 0;
}

void ReduceScatter::post(Calls& calls, int step) const {
  switch (algorithm_) {
    case Algorithm::direct: post_direct(calls, step); return;
    case Algorithm::halving: post_halving(calls, step); return;
    case Algorithm::chain: post_chain(calls, step); return;
  }
}

void ReduceScatter::complete(Calls& calls, int step) const {
  const IndexRange mine = part(group_.rank);
  const bool last = step + 1 == steps();
  switch (algorithm_) {
    case Algorithm::direct:
      if (last)
        calls.add(data_ + mine.begin, result_, mine.size());
      else
        calls.add(result_, data_ + mine.begin, mine.size());
      return;
    case Algorithm::halving:
      if (last)
        calls.add(data_ + mine.begin, result_, mine.size());
      else
        add_received(calls, step);
      return;
    case Algorithm::chain:
      if (step != 0 || group_.rank == 0) return;
      calls.add(scratch_, data_, elements_);
      if (group_.rank == group_.size - 1) calls.copy(data_ + mine.begin, result_, mine.size());
      return;
  }
}

void ReduceScatter::post_direct(Calls& calls, int step) const {
  calls.receive(result_, {0, part(group_.rank).size()}, group_.ring_previous(step + 1));
  calls.send(data_, part(group_.ring_next(step + 1)), group_.ring_next(step + 1));
}

template <class Body>
void ReduceScatter::for_each_part(int level, bool partners, Body&& body) const {
  // Before this level a rank holds the parts whose owners share its lower `level` bits.
  const int stride = 1 << level;
  const int first = (partners ? group_.partner(level) : group_.rank) % (2 * stride);
  for (int owner = first; owner < group_.size; owner += 2 * stride) body(part(owner));
}

std::int64_t ReduceScatter::count_elements(int level, bool partners) const {
  std::int64_t sum = 0;
  for_each_part(level, partners, [&](const IndexRange& shard) { sum += shard.size(); });
  return sum;
}

// scratch = [parts for the partner, packed | parts received, packed]: together the size of the
// parts held. At the last level there is one part in each direction, which needs no packing.
void ReduceScatter::post_halving(Calls& calls, int level) const {
  const int partner = group_.partner(level);
  if (level + 1 == group_.levels()) {
    calls.receive(result_, {0, part(group_.rank).size()}, partner);
    calls.send(data_, part(partner), partner);
    return;
  }
  std::int64_t given = 0;
  for_each_part(level, true, [&](const IndexRange& theirs) {
    calls.copy(data_ + theirs.begin, scratch_ + given, theirs.size());
    given += theirs.size();
  });
  calls.receive(scratch_, {given, given + count_elements(level, false)}, partner);
  calls.send(scratch_, {0, given}, partner);
}

void ReduceScatter::add_received(Calls& calls, int level) const {
  const float* received = scratch_ + count_elements(level, true);
  for_each_part(level, false, [&](const IndexRange& mine) {
    calls.add(received, data_ + mine.begin, mine.size());
    received += mine.size();
  });
}

void ReduceScatter::post_chain(Calls& calls, int step) const {
  const int rank = group_.rank, last = group_.size - 1;
  if (step == 0) return rank > 0 ? calls.receive(scratch_, {0, elements_}, rank - 1) : void();
  if (rank == last) return calls.send(data_, part(step - 1), step - 1);
  if (step == 1) return calls.send(data_, {0, elements_}, rank + 1);
  return calls.receive(result_, {0, part(rank).size()}, last);
}

std::string ReduceScatter::describe(const Communicator::Implementation& group) const {
  return fmt::format("{} bytes over {}, {} order", elements_ * std::int64_t{sizeof(float)},
                     group.describe(), algorithm_ == Algorithm::direct ? "library" : "tree");
}

}  // namespace trireme::comm
