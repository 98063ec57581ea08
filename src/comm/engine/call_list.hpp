// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "calls.hpp"

namespace trireme::comm {

/// One request as a list of calls, recorded before any of them runs. Nccl enqueues the list on a
/// stream. Recording needs no device and does not depend on one. A call refers to memory by
/// address.
class CallList final : public Calls {
 public:
  /// - send, receive, broadcast, all_gather: `count` in bytes.
  /// - all_reduce, reduce, reduce_scatter: `count` elements, float32 or (`in_bfloat16`) bfloat16.
  /// - add, copy: `count` floats.
  /// - add_bfloat16 (float32 += bfloat16), add_float64, narrow (to bfloat16), widen (to float32):
  ///   `count` elements.
  /// - end_group: NCCL runs the messages and library calls since the last one as one group.
  ///
  /// `peer` of reduce and broadcast is the root. reduce_scatter and all_gather: `count` is that of
  /// one rank.
  enum class Kind : std::uint8_t {
    send,
    receive,
    all_reduce,
    reduce,
    reduce_scatter,
    all_gather,
    broadcast,
    add,
    add_bfloat16,
    add_float64,
    copy,
    narrow,
    widen,
    end_group
  };
  struct Call {
    Kind kind;
    const void* from = nullptr;
    void* to = nullptr;
    std::int64_t count = 0;
    int peer = 0;
    bool in_bfloat16 = false;
    /// Returns whether the call works on this rank's memory alone.
    bool is_local() const {
      return kind == Kind::add || kind == Kind::add_bfloat16 || kind == Kind::add_float64 ||
             kind == Kind::copy || kind == Kind::narrow || kind == Kind::widen;
    }
  };

  /// Starts another request; keeps the allocated memory.
  void clear();
  const std::vector<Call>& calls() const { return calls_; }
  /// Returns the bytes that this rank sends. Library calls count as ring algorithms.
  double bytes_sent() const { return bytes_sent_; }

  /// Records all steps of a request that MPI would execute, which produces the same bits.
  template <class Work>
  void record_steps(const Work& work) {
    for (int step = 0; step < work.steps(); ++step) {
      work.post(*this, step);
      end_group();
      work.complete(*this, step);
    }
  }
  /// Ends a group: NCCL runs the messages and library calls since the last end_group() together.
  void end_group();
  /// Records NCCL's own collectives. `bounds` as in Engine's requests; `data` points to
  /// bounds.front().
  ///
  /// Parts of equal size take one call, others one call for each rank. With `transfer_buffer` (as
  /// many elements as `data`) the sum is computed in bfloat16 there and converted back.
  void record_library_all_reduce(const RankInGroup& group, float* data, std::int64_t count,
                                 BFloat16* transfer_buffer = nullptr);
  void record_library_reduce_scatter(const RankInGroup& group, float* data,
                                     std::span<const std::int64_t> bounds, float* result,
                                     BFloat16* transfer_buffer = nullptr);
  void record_library_all_gather(const RankInGroup& group, std::byte* data,
                                 std::span<const std::int64_t> bounds);

  using Calls::receive;
  using Calls::send;
  void send(std::span<const std::byte> data, int to) override;
  void receive(std::span<std::byte> data, int from) override;
  void all_reduce(float* data, std::int64_t count) override;
  void add(const float* from, float* to, std::int64_t count) override;
  void add(const BFloat16* from, float* to, std::int64_t count) override;
  void add(const double* from, double* to, std::int64_t count) override;
  void copy(const float* from, float* to, std::int64_t count) override;
  void narrow(const float* from, BFloat16* to, std::int64_t count) override;
  void widen(const BFloat16* from, float* to, std::int64_t count) override;

 private:
  template <class T>
  void record_all_reduce(const RankInGroup& group, T* data, std::int64_t count);
  template <class T>
  void record_reduce_scatter(const RankInGroup& group, T* data,
                             std::span<const std::int64_t> bounds, T* result);
  void record(const Call& call) {
    if (call.count > 0) calls_.push_back(call);
  }

  std::vector<Call> calls_;
  double bytes_sent_ = 0;
};

}  // namespace trireme::comm
