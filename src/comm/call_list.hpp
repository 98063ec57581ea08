#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "calls.hpp"

namespace trireme::comm {

/// A request as a list of calls, made before any of them, for a library that takes them one after
/// the other in the order of a stream (NCCL). Pure: made alike without a device. Memory is given by
/// where it stands.
class CallList final : public Calls {
 public:
  /// `end`: the messages and library's calls before it, back to the last `end`, go together. Sums
  /// and copies are of elements, which are floats, in a library's sum bfloat16 where `wired`, and
  /// in add_narrow (to += from), narrow and widen one and the other; all else is of bytes. `peer`
  /// of a reduce or broadcast is its root. reduce_scatter and all_gather: `count` is one rank's.
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
    /// Work on this rank's own memory.
    bool is_local() const {
      return kind == Kind::add || kind == Kind::add_bfloat16 || kind == Kind::copy ||
             kind == Kind::narrow || kind == Kind::widen;
    }
  };

  /// Another request begins. Memory is kept.
  void clear();
  const std::vector<Call>& calls() const { return calls_; }
  /// Bytes that this rank sends, a library's calls as a ring would.
  double bytes_sent() const { return bytes_sent_; }

  /// All steps of what MPI does in the same steps: the same bits.
  template <class Work>
  void record_steps(const Work& work) {
    for (int step = 0; step < work.steps(); ++step) {
      work.post(*this, step);
      end_group();
      work.complete(*this, step);
    }
  }
  /// What was posted since the last one goes together.
  void end_group();
  /// By the library's own calls; `bounds` as of the engine's requests, `data` at bounds.front().
  /// Parts of one length go in one call, others in one a rank. `wire`, as long as data: the sum is
  /// made there, in bfloat16, and brought back.
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
