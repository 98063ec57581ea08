#include "wired_sum.hpp"

#include <fmt/format.h>

namespace trireme::comm {
namespace {

// Shards begin where kernels can take several elements at once.
constexpr std::int64_t pack = 32;

}  // namespace

WiredSum::WiredSum(const Pairs& group, float* data, BFloat16* wire, std::int64_t count)
    : kind("all_reduce"),
      group_(group),
      data_(data),
      wire_(wire),
      count_(count),
      scatters_(false) {}

WiredSum::WiredSum(const Pairs& group, float* data, BFloat16* wire,
                   std::span<const std::int64_t> bounds, float* result)
    : kind("reduce_scatter"),
      group_(group),
      data_(data),
      wire_(wire),
      count_(bounds.back() - bounds.front()),
      scatters_(true),
      bounds_(bounds),
      result_(result) {}

Range WiredSum::shard(int owner) const {
  if (scatters_) return part_of(bounds_, owner);
  const auto bound = [&](int rank) {
    return rank == group_.size ? count_ : count_ * rank / group_.size / pack * pack;
  };
  return {bound(owner), bound(owner + 1)};
}

// A rank's own shard is not sent, so its place on the wire is where the others' parts of it come.
void WiredSum::post(Calls& calls, int step) const {
  if (step == 0) calls.narrow(data_, wire_, count_);
  if (step < others()) {
    receive(calls, shard(group_.rank), group_.before(step + 1));
    send(calls, shard(group_.after(step + 1)), group_.after(step + 1));
  } else {
    const int turn = step - others();
    receive(calls, shard(group_.before(turn + 1)), group_.before());
    send(calls, shard(group_.before(turn)), group_.after());
  }
}

void WiredSum::complete(Calls& calls, int step) const {
  const Range mine = shard(group_.rank);
  if (step < others()) calls.add(wire_ + mine.begin, data_ + mine.begin, mine.size());
  if (step + 1 == others()) {
    if (scatters_)
      calls.copy(data_ + mine.begin, result_, mine.size());
    else
      calls.narrow(data_ + mine.begin, wire_ + mine.begin, mine.size());
  }
  if (!scatters_ && step + 1 == steps()) calls.widen(wire_, data_, count_);
}

std::string WiredSum::describe() const {
  return fmt::format("{} bytes over {} ranks, as bfloat16",
                     count_ * static_cast<std::int64_t>(sizeof(BFloat16)), group_.size);
}

}  // namespace trireme::comm
