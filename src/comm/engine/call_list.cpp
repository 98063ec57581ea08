// SPDX-License-Identifier: Apache-2.0
//
// Records the calls of a request for NCCL; Engine builds the list and Nccl::enqueue() runs it on a
// stream. The order of the calls is the order on the stream; tests/mpi/call_list_test.cpp runs
// lists without a device.

#include "call_list.hpp"

#include <type_traits>

#include "trireme/base/check.hpp"

namespace trireme::comm {
namespace {

/// Returns whether all parts have the same size.
bool has_equal_parts(std::span<const std::int64_t> bounds) {
  for (std::size_t rank = 1; rank + 1 < bounds.size(); ++rank) {
    if (bounds[rank + 1] - bounds[rank] != bounds[1] - bounds[0]) return false;
  }
  return true;
}

}  // namespace

void CallList::clear() {
  calls_.clear();
  bytes_sent_ = 0;
}

void CallList::end_group() {
  if (!calls_.empty() && calls_.back().kind != Kind::end_group && !calls_.back().is_local())
    calls_.push_back({.kind = Kind::end_group});
}

void CallList::send(std::span<const std::byte> data, int to) {
  record({.kind = Kind::send, .from = data.data(), .count = std::ssize(data), .peer = to});
  bytes_sent_ += static_cast<double>(data.size());
}

void CallList::receive(std::span<std::byte> data, int from) {
  record({.kind = Kind::receive, .to = data.data(), .count = std::ssize(data), .peer = from});
}

void CallList::all_reduce(float* data, std::int64_t count) {
  record({.kind = Kind::all_reduce, .from = data, .to = data, .count = count});
}

void CallList::add(const float* from, float* to, std::int64_t count) {
  record({.kind = Kind::add, .from = from, .to = to, .count = count});
}

void CallList::add(const BFloat16* from, float* to, std::int64_t count) {
  record({.kind = Kind::add_bfloat16, .from = from, .to = to, .count = count});
}

void CallList::add(const double* from, double* to, std::int64_t count) {
  record({.kind = Kind::add_float64, .from = from, .to = to, .count = count});
}

void CallList::copy(const float* from, float* to, std::int64_t count) {
  record({.kind = Kind::copy, .from = from, .to = to, .count = count});
}

void CallList::narrow(const float* from, BFloat16* to, std::int64_t count) {
  record({.kind = Kind::narrow, .from = from, .to = to, .count = count});
}

void CallList::widen(const BFloat16* from, float* to, std::int64_t count) {
  record({.kind = Kind::widen, .from = from, .to = to, .count = count});
}

template <class T>
void CallList::record_all_reduce(const RankInGroup& group, T* data, std::int64_t count) {
  record({.kind = Kind::all_reduce,
          .from = data,
          .to = data,
          .count = count,
          .in_bfloat16 = std::is_same_v<T, BFloat16>});
  end_group();
  bytes_sent_ += 2 * ring_bytes(group, count * std::int64_t{sizeof(T)});
}

template <class T>
void CallList::record_reduce_scatter(const RankInGroup& group, T* data,
                                     std::span<const std::int64_t> bounds, T* result) {
  constexpr bool in_bfloat16 = std::is_same_v<T, BFloat16>;
  const std::int64_t count = bounds.back() - bounds.front();
  if (has_equal_parts(bounds)) {
    record({.kind = Kind::reduce_scatter,
            .from = data,
            .to = result,
            .count = count / group.size,
            .in_bfloat16 = in_bfloat16});
  } else {
    for (int root = 0; root < group.size; ++root) {
      const IndexRange part = part_of(bounds, root);
      record({.kind = Kind::reduce,
              .from = data + part.begin,
              .to = root == group.rank ? result : nullptr,
              .count = part.size(),
              .peer = root,
              .in_bfloat16 = in_bfloat16});
    }
  }
  end_group();
  bytes_sent_ += ring_bytes(group, count * std::int64_t{sizeof(T)});
}

void CallList::record_library_all_reduce(const RankInGroup& group, float* data, std::int64_t count,
                                         BFloat16* transfer_buffer) {
  if (transfer_buffer == nullptr) return record_all_reduce(group, data, count);
  narrow(data, transfer_buffer, count);
  record_all_reduce(group, transfer_buffer, count);
  widen(transfer_buffer, data, count);
}

void CallList::record_library_reduce_scatter(const RankInGroup& group, float* data,
                                             std::span<const std::int64_t> bounds, float* result,
                                             BFloat16* transfer_buffer) {
  if (transfer_buffer == nullptr) return record_reduce_scatter(group, data, bounds, result);
  const IndexRange mine = part_of(bounds, group.rank);
  narrow(data, transfer_buffer, bounds.back() - bounds.front());
  record_reduce_scatter(group, transfer_buffer, bounds, transfer_buffer + mine.begin);  // in place
  widen(transfer_buffer + mine.begin, result, mine.size());
}

void CallList::record_library_all_gather(const RankInGroup& group, std::byte* data,
                                         std::span<const std::int64_t> bounds) {
  const std::int64_t bytes = bounds.back() - bounds.front();
  if (has_equal_parts(bounds)) {
    record({.kind = Kind::all_gather,
            .from = data + part_of(bounds, group.rank).begin,
            .to = data,
            .count = bytes / group.size});
  } else {
    for (int root = 0; root < group.size; ++root) {
      const IndexRange part = part_of(bounds, root);
      record({.kind = Kind::broadcast,
              .from = data + part.begin,
              .to = data + part.begin,
              .count = part.size(),
              .peer = root});
    }
  }
  end_group();
  bytes_sent_ += ring_bytes(group, bytes);
}

}  // namespace trireme::comm
