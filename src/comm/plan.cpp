#include "plan.hpp"

#include <type_traits>

#include "trireme/base/check.hpp"

namespace trireme::comm {
namespace {

bool even(std::span<const std::int64_t> bounds) {
  for (std::size_t rank = 1; rank + 1 < bounds.size(); ++rank) {
    if (bounds[rank + 1] - bounds[rank] != bounds[1] - bounds[0]) return false;
  }
  return true;
}

/// Of what goes round a ring once, the part that a rank sends.
double ring(const Pairs& group, std::int64_t bytes) {
  return static_cast<double>(bytes) * (group.size - 1) / group.size;
}

}  // namespace

void Plan::clear() {
  calls_.clear();
  bytes_sent_ = 0;
}

void Plan::end() {
  if (!calls_.empty() && calls_.back().kind != Kind::end && !calls_.back().local())
    calls_.push_back({.kind = Kind::end});
}

void Plan::send(std::span<const std::byte> data, int to) {
  push({.kind = Kind::send, .from = data.data(), .count = std::ssize(data), .peer = to});
  bytes_sent_ += static_cast<double>(data.size());
}

void Plan::receive(std::span<std::byte> data, int from) {
  push({.kind = Kind::receive, .to = data.data(), .count = std::ssize(data), .peer = from});
}

void Plan::all_reduce(float* data, std::int64_t count) {
  push({.kind = Kind::all_reduce, .from = data, .to = data, .count = count});
}

void Plan::add(const float* from, float* to, std::int64_t count) {
  push({.kind = Kind::add, .from = from, .to = to, .count = count});
}

void Plan::add(const BFloat16* from, float* to, std::int64_t count) {
  push({.kind = Kind::add_narrow, .from = from, .to = to, .count = count});
}

void Plan::copy(const float* from, float* to, std::int64_t count) {
  push({.kind = Kind::copy, .from = from, .to = to, .count = count});
}

void Plan::narrow(const float* from, BFloat16* to, std::int64_t count) {
  push({.kind = Kind::narrow, .from = from, .to = to, .count = count});
}

void Plan::widen(const BFloat16* from, float* to, std::int64_t count) {
  push({.kind = Kind::widen, .from = from, .to = to, .count = count});
}

template <class T>
void Plan::sum_over(const Pairs& group, T* data, std::int64_t count) {
  push({.kind = Kind::all_reduce,
        .from = data,
        .to = data,
        .count = count,
        .wired = std::is_same_v<T, BFloat16>});
  end();
  bytes_sent_ += 2 * ring(group, count * std::int64_t{sizeof(T)});
}

template <class T>
void Plan::scatter_sum(const Pairs& group, T* data, std::span<const std::int64_t> bounds,
                       T* result) {
  constexpr bool wired = std::is_same_v<T, BFloat16>;
  const std::int64_t count = bounds.back() - bounds.front();
  if (even(bounds)) {
    push({.kind = Kind::reduce_scatter,
          .from = data,
          .to = result,
          .count = count / group.size,
          .wired = wired});
  } else {
    for (int root = 0; root < group.size; ++root) {
      const Range part = part_of(bounds, root);
      push({.kind = Kind::reduce,
            .from = data + part.begin,
            .to = root == group.rank ? result : nullptr,
            .count = part.size(),
            .peer = root,
            .wired = wired});
    }
  }
  end();
  bytes_sent_ += ring(group, count * std::int64_t{sizeof(T)});
}

void Plan::library_all_reduce(const Pairs& group, float* data, std::int64_t count, BFloat16* wire) {
  if (wire == nullptr) return sum_over(group, data, count);
  narrow(data, wire, count);
  sum_over(group, wire, count);
  widen(wire, data, count);
}

void Plan::library_reduce_scatter(const Pairs& group, float* data,
                                  std::span<const std::int64_t> bounds, float* result,
                                  BFloat16* wire) {
  if (wire == nullptr) return scatter_sum(group, data, bounds, result);
  const Range mine = part_of(bounds, group.rank);
  narrow(data, wire, bounds.back() - bounds.front());
  scatter_sum(group, wire, bounds, wire + mine.begin);  // in place
  widen(wire + mine.begin, result, mine.size());
}

void Plan::library_all_gather(const Pairs& group, std::byte* data,
                              std::span<const std::int64_t> bounds) {
  const std::int64_t bytes = bounds.back() - bounds.front();
  if (even(bounds)) {
    push({.kind = Kind::all_gather,
          .from = data + part_of(bounds, group.rank).begin,
          .to = data,
          .count = bytes / group.size});
  } else {
    for (int root = 0; root < group.size; ++root) {
      const Range part = part_of(bounds, root);
      push({.kind = Kind::broadcast,
            .from = data + part.begin,
            .to = data + part.begin,
            .count = part.size(),
            .peer = root});
    }
  }
  end();
  bytes_sent_ += ring(group, bytes);
}

}  // namespace trireme::comm
