#include "plan.hpp"

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
double ring(const Pairs& group, std::int64_t bytes) { return static_cast<double>(bytes) * (group.size - 1) / group.size; }

}  // namespace

void Plan::clear() {
  calls_.clear();
  bytes_sent_ = 0;
}

void Plan::end() {
  const auto opens = [](Kind kind) { return kind != Kind::end && kind != Kind::add && kind != Kind::copy; };
  if (!calls_.empty() && opens(calls_.back().kind)) calls_.push_back({.kind = Kind::end});
}

void Plan::send(std::span<const std::byte> data, int to) {
  push({.kind = Kind::send, .from = data.data(), .count = std::ssize(data), .peer = to});
  bytes_sent_ += static_cast<double>(data.size());
}

void Plan::receive(std::span<std::byte> data, int from) { push({.kind = Kind::receive, .to = data.data(), .count = std::ssize(data), .peer = from}); }

void Plan::all_reduce(float* data, std::int64_t count) { push({.kind = Kind::all_reduce, .from = data, .to = data, .count = count}); }

void Plan::add(const float* from, float* to, std::int64_t count) { push({.kind = Kind::add, .from = from, .to = to, .count = count}); }

void Plan::copy(const float* from, float* to, std::int64_t count) { push({.kind = Kind::copy, .from = from, .to = to, .count = count}); }

void Plan::library_all_reduce(const Pairs& group, float* data, std::int64_t count) {
  all_reduce(data, count);
  end();
  bytes_sent_ += 2 * ring(group, count * std::int64_t{sizeof(float)});
}

void Plan::library_reduce_scatter(const Pairs& group, float* data, std::span<const std::int64_t> bounds, float* result) {
  const std::int64_t count = bounds.back() - bounds.front();
  if (even(bounds)) {
    push({.kind = Kind::reduce_scatter, .from = data, .to = result, .count = count / group.size});
  } else {
    for (int root = 0; root < group.size; ++root) {
      const Range part = part_of(bounds, root);
      push({.kind = Kind::reduce, .from = data + part.begin, .to = root == group.rank ? result : nullptr, .count = part.size(), .peer = root});
    }
  }
  end();
  bytes_sent_ += ring(group, count * std::int64_t{sizeof(float)});
}

void Plan::library_all_gather(const Pairs& group, std::byte* data, std::span<const std::int64_t> bounds) {
  const std::int64_t bytes = bounds.back() - bounds.front();
  if (even(bounds)) {
    push({.kind = Kind::all_gather, .from = data + part_of(bounds, group.rank).begin, .to = data, .count = bytes / group.size});
  } else {
    for (int root = 0; root < group.size; ++root) {
      const Range part = part_of(bounds, root);
      push({.kind = Kind::broadcast, .from = data + part.begin, .to = data + part.begin, .count = part.size(), .peer = root});
    }
  }
  end();
  bytes_sent_ += ring(group, bytes);
}

}  // namespace trireme::comm
