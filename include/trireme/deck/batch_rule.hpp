// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "trireme/base/broken_rule.hpp"
#include "trireme/data/options.hpp"
#include "trireme/deck/options.hpp"
#include "trireme/parallel/options.hpp"

namespace trireme::deck {

/// Checks that a step consists of whole micro-batches on every replica, and that a micro-batch
/// consists of pairs if its samples are mixed. Returns the broken rule, with values that fit both,
/// or nothing if the batch fits.
///
/// `mixing`: {} if no samples are mixed, as in evaluations. `data_ranks`: number of replicas; 1
/// while it is unknown. `is_automatic`: it follows from the number of ranks (parallel.data =
/// "auto"), so messages do not call it the value of a key.
std::optional<BrokenRule> broken_batch_rule(const BatchOptions& batch,
                                            const data::PairMixing& mixing, std::int64_t data_ranks,
                                            bool is_automatic, const KeyNotes& notes = {});

/// Checks that groups of parallel.sync_batch_norm have two data ranks or more and divide all of
/// them. Returns the broken rule with valid values, or nothing. `data_ranks` and `is_automatic` as
/// above.
std::optional<BrokenRule> broken_batch_norm_rule(const parallel::ParallelOptions& parallel,
                                                 int data_ranks, bool is_automatic);

}  // namespace trireme::deck
