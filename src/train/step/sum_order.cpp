// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/step/sum_order.hpp"

#include <bit>

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::train {
namespace {

/// On the CPU gradients up to this size are summed in tree order at up to `max_ordered_replicas`.
///
/// The levels of the tree are small beside the activations. Any other order changes last bits, and
/// one of them eventually switches a ReLU on or off. From then on, small networks with batch norm
/// diverge by a factor of about 3 per step.
constexpr std::int64_t max_ordered_bytes = std::int64_t{128} << 20;
constexpr int max_ordered_replicas = 16;

}  // namespace

SumOrderChoice choose_sum_order(const ReplicaOptions& options, DeviceKind target,
                                std::int64_t weights, int replicas) {
  using comm::SumOrder;
  if (options.deterministic) return {SumOrder::tree, "run.deterministic = true"};
  if (!options.trains) return {SumOrder::library, "nothing is trained"};
  if (target != DeviceKind::cpu) return {SumOrder::library, "the fastest on GPUs"};
  if (options.shard > parallel::ShardKind::optimizer)
    return {SumOrder::library, "sharded gradients have no buffers for a tree"};
  const std::int64_t bytes = weights * size_of(DType::float32);
  if (bytes > max_ordered_bytes)
    return {SumOrder::library, fmt::format("gradients of {} are more than {}", format_bytes(bytes),
                                           format_bytes(max_ordered_bytes))};
  if (replicas > max_ordered_replicas || !std::has_single_bit(static_cast<unsigned>(replicas)))
    return {SumOrder::library, fmt::format("{} replicas are not 1, 2, 4, 8 or 16", replicas)};
  return {SumOrder::tree, "a small model on " + counted(replicas, "CPU replica", "CPU replicas")};
}

}  // namespace trireme::train
