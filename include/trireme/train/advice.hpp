// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::train {

/// Returns warnings about schedules of large batches that are valid but seldom train well: a scaled
/// rate without warm-up, and linear scaling of SGD beyond 8,192 samples (Goyal et al. 2017, section
/// 5.1).
std::vector<std::string> schedule_warnings(const deck::Deck& deck);

/// Returns the remark that a warm-up is shorter or longer than those that are usual, 1 to 10 % of
/// the schedule. Returns nothing without a warm-up, or if the length of the schedule is unknown.
std::optional<std::string> warmup_remark(const deck::Deck& deck, const ResolvedLayout& layout);

/// Returns the remark that batch norm computes its statistics from a micro-batch, not from the
/// step. Returns nothing if the model has no batch norm or a step is one micro-batch.
std::optional<std::string> batch_norm_remark(const deck::Deck& deck);

/// Returns the message that the plan of a rank exceeds `memory_bytes` of its device `target`, or of
/// the host if that is its device; with the value of model.head_tile_mb that makes it fit, if there
/// is one. Returns nothing if the plan fits.
std::optional<std::string> memory_shortage(const MemoryPlan& plan, const ReplicaOptions& options,
                                           const parallel::MeshShape& shape, int world_rank,
                                           DeviceKind target, std::int64_t memory_bytes);

}  // namespace trireme::train
