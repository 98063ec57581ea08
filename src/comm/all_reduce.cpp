#include "all_reduce.hpp"

#include <fmt/format.h>

namespace trireme::comm {
namespace {

// Below 16 KiB a message costs its latency: fewer messages beat fewer bytes.
constexpr std::int64_t halving_elements = 4096;

}  // namespace

AllReduce::AllReduce(const Pairs& group, float* data, float* scratch, std::int64_t count,
                     SumOrder order)
    : group_(group), data_(data), scratch_(scratch), count_(count) {
  if (order == SumOrder::library)
    way_ = Way::library;
  else if (!group.complete())
    way_ = Way::chain;
  else
    way_ = count < halving_elements ? Way::exchange : Way::halving;
}

int AllReduce::steps() const {
  switch (way_) {
    case Way::library: return 1;
    case Way::exchange: return group_.levels();
    case Way::halving: return 2 * group_.levels();
    case Way::chain: return 4;
  }
  return 0;
}

void AllReduce::post(Calls& calls, int step) const {
  switch (way_) {
    case Way::library: calls.all_reduce(data_, count_); return;
    case Way::exchange:
      calls.receive(scratch_, all(), group_.partner(step));
      calls.send(data_, all(), group_.partner(step));
      return;
    case Way::halving: post_halving(calls, step); return;
    case Way::chain: post_chain(calls, step); return;
  }
}

Range AllReduce::half(const Range& whole, int level, bool partners) const {
  const std::int64_t middle = whole.begin + whole.size() / 2;
  return group_.upper(level) != partners ? Range{middle, whole.end} : Range{whole.begin, middle};
}

Range AllReduce::held(int level) const {
  Range range = all();
  for (int before = 0; before < level; ++before) range = half(range, before, false);
  return range;
}

void AllReduce::post_halving(Calls& calls, int step) const {
  const bool scattering = step < group_.levels();
  const int level = scattering ? step : 2 * group_.levels() - 1 - step;
  const Range mine = half(held(level), level, false), theirs = half(held(level), level, true);
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
  if (way_ == Way::exchange) add_received(calls, all());
  if (way_ == Way::halving && step < group_.levels()) add_received(calls, held(step + 1));
  if (way_ == Way::chain && step == 0 && group_.rank > 0) add_received(calls, all());
}

std::string AllReduce::describe() const {
  return fmt::format("{} bytes over {} ranks, {} order", count_ * std::int64_t{sizeof(float)},
                     group_.size, way_ == Way::library ? "library" : "tree");
}

}  // namespace trireme::comm
