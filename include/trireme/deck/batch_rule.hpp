#pragma once

#include <optional>

#include "trireme/base/broken_rule.hpp"
#include "trireme/deck/options.hpp"

namespace trireme::deck {

/// Returns the broken rule between the batch and its `data_ranks` replicas: a step consists of
/// whole micro-batches on each. `data_ranks` is 0 while it is unknown (parallel.data = "auto").
std::optional<BrokenRule> broken_batch_rule(const BatchOptions& batch, std::int64_t data_ranks,
                                            const KeyNotes& notes = {});

}  // namespace trireme::deck
