// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/comm/rank_axis.hpp"

namespace trireme::comm {

/// A step of a sum or gather that Engine carries out by its own messages: at most one message in
/// each direction, then additions.
struct MessageStep {
  int to = -1, from = -1;  ///< Ranks of the group; -1: no message.
  std::int64_t sent_bytes = 0, received_bytes = 0;
  std::int64_t added_bytes = 0;  ///< Received numbers that are added.
};

/// Returns the steps of `rank` in a sum or gather over `size` ranks, of the classes that carry it
/// out. Parts of ranks count as equal, to one element (gathers: one byte).
///
/// `bytes`: payload, as in Engine::Call. `order` and `transfer_type` are ignored for a gather. A
/// float32 all_reduce in library order has no messages of the program's own.
std::vector<MessageStep> message_steps(Engine::Call::Kind kind, int rank, int size,
                                       std::int64_t bytes, SumOrder order,
                                       TransferType transfer_type);

/// Returns the steps of `rank` in a float64 sum of `bytes` in SumOrder::axes.
std::vector<MessageStep> message_steps(int rank, std::int64_t bytes,
                                       std::span<const RankAxis> axes);

}  // namespace trireme::comm
