// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "comm/sums/rank_in_group.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/engine/engine.hpp"
#include "trireme/comm/rank_axis.hpp"

namespace trireme::comm {

/// Returns the size of an element of this type in bytes.
std::int64_t element_bytes(TransferType transfer_type);

RankInGroup rank_in(const Communicator& group);

// Return the bytes that this rank sends for a sum or gather: those of its messages, or with a
// library's sum those of a ring. Nothing is sent.

double sent_by_all_reduce(const Communicator& group, std::int64_t count, SumOrder order,
                          TransferType transfer_type, bool by_nccl);
double sent_by_reduce_scatter(const Communicator& group, std::span<const std::int64_t> bounds,
                              SumOrder order, TransferType transfer_type, bool by_nccl);
double sent_by_all_gather(const Communicator& group, std::span<const std::int64_t> bounds,
                          bool by_nccl);
double sent_by_axis_sum(const Communicator& group, std::span<const RankAxis> axes,
                        std::int64_t count);

}  // namespace trireme::comm
