// SPDX-License-Identifier: Apache-2.0
#include "sent_bytes.hpp"

#include <cstddef>

#include "calls.hpp"
#include "comm/sums/all_gather.hpp"
#include "comm/sums/all_reduce.hpp"
#include "comm/sums/axis_sum.hpp"
#include "comm/sums/bfloat16_sum.hpp"
#include "comm/sums/reduce_scatter.hpp"

namespace trireme::comm {
namespace {

/// Adds up the bytes that a rank sends in the steps of a request, without executing them.
class SentBytes final : public Calls {
 public:
  template <class Work>
  static double of(const Work& work) {
    SentBytes calls;
    for (int step = 0; step < work.steps(); ++step) work.post(calls, step);
    return calls.bytes_;
  }

 private:
  void send(std::span<const std::byte> data, int) override {
    bytes_ += static_cast<double>(data.size());
  }
  void receive(std::span<std::byte>, int) override {}
  void all_reduce(float*, std::int64_t) override {}
  void add(const float*, float*, std::int64_t) override {}
  void add(const BFloat16*, float*, std::int64_t) override {}
  void add(const double*, double*, std::int64_t) override {}
  void copy(const float*, float*, std::int64_t) override {}
  void narrow(const float*, BFloat16*, std::int64_t) override {}
  void widen(const BFloat16*, float*, std::int64_t) override {}

  double bytes_ = 0;
};

// Steps compute addresses relative to the memory of a request. SentBytes never uses them.
template <class T>
T* any_address() {
  return reinterpret_cast<T*>(std::uintptr_t{1} << 32);
}

}  // namespace

std::int64_t element_bytes(TransferType transfer_type) {
  return transfer_type == TransferType::bfloat16 ? sizeof(BFloat16) : sizeof(float);
}

RankInGroup rank_in(const Communicator& group) { return {group.rank(), group.size()}; }

double sent_by_all_reduce(const Communicator& group, std::int64_t count, SumOrder order,
                          TransferType transfer_type, bool by_nccl) {
  const bool is_narrow = transfer_type == TransferType::bfloat16;
  // MPI has no library sum in bfloat16.
  if (order == SumOrder::library && (by_nccl || !is_narrow))
    return 2 * ring_bytes(rank_in(group), count * element_bytes(transfer_type));
  if (is_narrow)
    return SentBytes::of(
        Bfloat16Sum(rank_in(group), any_address<float>(), any_address<BFloat16>(), count));
  return SentBytes::of(
      AllReduce(rank_in(group), any_address<float>(), any_address<float>(), count, order));
}

double sent_by_reduce_scatter(const Communicator& group, std::span<const std::int64_t> bounds,
                              SumOrder order, TransferType transfer_type, bool by_nccl) {
  const std::int64_t count = bounds.back() - bounds.front();
  if (order == SumOrder::library && by_nccl)
    return ring_bytes(rank_in(group), count * element_bytes(transfer_type));
  if (transfer_type == TransferType::bfloat16)
    return SentBytes::of(Bfloat16Sum(rank_in(group), any_address<float>(), any_address<BFloat16>(),
                                     bounds, any_address<float>()));
  return SentBytes::of(ReduceScatter(rank_in(group), any_address<float>(), any_address<float>(),
                                     bounds, any_address<float>(), order));
}

double sent_by_all_gather(const Communicator& group, std::span<const std::int64_t> bounds,
                          bool by_nccl) {
  return by_nccl ? ring_bytes(rank_in(group), bounds.back() - bounds.front())
                 : SentBytes::of(AllGather(rank_in(group), any_address<std::byte>(), bounds));
}

double sent_by_axis_sum(const Communicator& group, std::span<const RankAxis> axes,
                        std::int64_t count) {
  return SentBytes::of(
      AxisSum(group.rank(), axes, any_address<double>(), any_address<double>(), count));
}

}  // namespace trireme::comm
