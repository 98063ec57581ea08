// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/sums/rank_in_group.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::comm {

/// The calls that the steps of a request may issue. MpiCalls executes them on host memory; CallList
/// records them for NCCL.
///
/// Calls of one step may run concurrently and in any order, with two exceptions: messages from one
/// rank to another arrive in the order issued, and operations on local memory run in the order of
/// the calls.
class Calls {
 public:
  virtual ~Calls() = default;
  /// Sends a message; ignores empty ones.
  virtual void send(std::span<const std::byte> data, int to) = 0;
  virtual void receive(std::span<std::byte> data, int from) = 0;
  /// Sums over the group in place with the library's own algorithm. All ranks call it in the same
  /// order.
  virtual void all_reduce(float* data, std::int64_t count) = 0;
  /// Computes to += from. The result is the same if `to` and `from` are swapped between two ranks.
  virtual void add(const float* from, float* to, std::int64_t count) = 0;
  virtual void add(const BFloat16* from, float* to, std::int64_t count) = 0;
  virtual void add(const double* from, double* to, std::int64_t count) = 0;
  /// Computes to = from.
  virtual void copy(const float* from, float* to, std::int64_t count) = 0;
  /// Converts to bfloat16 (round to nearest), and back.
  virtual void narrow(const float* from, BFloat16* to, std::int64_t count) = 0;
  virtual void widen(const BFloat16* from, float* to, std::int64_t count) = 0;

  /// Sends or receives a range of a float array.
  void send(const float* data, const IndexRange& range, int to) {
    send(std::as_bytes(std::span(data + range.begin, data + range.end)), to);
  }
  void receive(float* data, const IndexRange& range, int from) {
    receive(std::as_writable_bytes(std::span(data + range.begin, data + range.end)), from);
  }
};

}  // namespace trireme::comm
