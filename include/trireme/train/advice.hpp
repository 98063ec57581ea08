#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"

namespace trireme::train {

/// Returns warnings about schedules of large batches that are valid but seldom train well: a scaled
/// rate without warm-up, and linear scaling of SGD beyond 8,192 samples (Goyal et al. 2017, section
/// 5.1).
std::vector<std::string> schedule_warnings(const deck::Deck& deck);

/// Returns the remark that batch norm computes its statistics from a micro-batch, not from the
/// step. Returns nothing if the model has no batch norm or a step is one micro-batch.
std::optional<std::string> batch_norm_remark(const deck::Deck& deck);

}  // namespace trireme::train
