// SPDX-License-Identifier: Apache-2.0
//
// Lists the messages of a sum or gather: the class of the request posts its calls into a recorder.
// `trireme plan --simgrid` writes them for a simulator of networks.

#include "trireme/comm/engine/message_steps.hpp"

#include <cstddef>

#include "comm/sums/all_gather.hpp"
#include "comm/sums/all_reduce.hpp"
#include "comm/sums/axis_sum.hpp"
#include "comm/sums/bfloat16_sum.hpp"
#include "comm/sums/reduce_scatter.hpp"
#include "trireme/base/check.hpp"

namespace trireme::comm {
namespace {

/// Records the steps of one request.
class StepRecorder final : public Calls {
 public:
  template <class Work>
  static std::vector<MessageStep> of(const Work& work) {
    StepRecorder recorder;
    for (int step = 0; step < work.steps(); ++step) {
      recorder.steps_.emplace_back();
      work.post(recorder, step);
      work.complete(recorder, step);
    }
    return std::move(recorder.steps_);
  }

 private:
  void send(std::span<const std::byte> data, int to) override {
    if (data.empty()) return;
    TRIREME_EXPECT(steps_.back().to < 0);
    steps_.back().to = to;
    steps_.back().sent_bytes = std::ssize(data);
  }
  void receive(std::span<std::byte> data, int from) override {
    if (data.empty()) return;
    TRIREME_EXPECT(steps_.back().from < 0);
    steps_.back().from = from;
    steps_.back().received_bytes = std::ssize(data);
  }
  void all_reduce(float*, std::int64_t) override { TRIREME_EXPECT(false); }
  void add(const float*, float*, std::int64_t count) override {
    steps_.back().added_bytes += count * std::int64_t{sizeof(float)};
  }
  void add(const BFloat16*, float*, std::int64_t count) override {
    steps_.back().added_bytes += count * std::int64_t{sizeof(BFloat16)};
  }
  void add(const double*, double*, std::int64_t count) override {
    steps_.back().added_bytes += count * std::int64_t{sizeof(double)};
  }
  void copy(const float*, float*, std::int64_t) override {}
  void narrow(const float*, BFloat16*, std::int64_t) override {}
  void widen(const BFloat16*, float*, std::int64_t) override {}

  std::vector<MessageStep> steps_;
};

// Steps compute addresses relative to the memory of a request. The recorder never uses them.
template <class T>
T* unused_memory() {
  return reinterpret_cast<T*>(std::uintptr_t{1} << 32);
}

std::vector<std::int64_t> bounds_of_equal_parts(int size, std::int64_t count) {
  std::vector<std::int64_t> bounds;
  for (int rank = 0; rank <= size; ++rank) bounds.push_back(count * rank / size);
  return bounds;
}

}  // namespace

std::vector<MessageStep> message_steps(Engine::Call::Kind kind, int rank, int size,
                                       std::int64_t bytes, SumOrder order,
                                       TransferType transfer_type) {
  using Kind = Engine::Call::Kind;
  const RankInGroup group{rank, size};
  if (kind == Kind::all_gather)
    return StepRecorder::of(
        AllGather(group, unused_memory<std::byte>(), bounds_of_equal_parts(size, bytes)));
  TRIREME_EXPECT(kind == Kind::all_reduce || kind == Kind::reduce_scatter);
  const bool is_narrow = transfer_type == TransferType::bfloat16;
  const std::int64_t count =
      bytes / static_cast<std::int64_t>(is_narrow ? sizeof(BFloat16) : sizeof(float));
  auto* const floats = unused_memory<float>();
  auto* const buffer = unused_memory<BFloat16>();
  if (kind == Kind::all_reduce)
    return is_narrow ? StepRecorder::of(Bfloat16Sum(group, floats, buffer, count))
                     : StepRecorder::of(AllReduce(group, floats, floats, count, order));
  const std::vector<std::int64_t> bounds = bounds_of_equal_parts(size, count);
  return is_narrow ? StepRecorder::of(Bfloat16Sum(group, floats, buffer, bounds, floats))
                   : StepRecorder::of(ReduceScatter(group, floats, floats, bounds, floats, order));
}

std::vector<MessageStep> message_steps(int rank, std::int64_t bytes,
                                       std::span<const RankAxis> axes) {
  auto* const values = unused_memory<double>();
  return StepRecorder::of(
      AxisSum(rank, axes, values, values, bytes / std::int64_t{sizeof(double)}));
}

}  // namespace trireme::comm
