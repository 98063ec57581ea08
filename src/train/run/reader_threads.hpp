// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/base/log.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/device.hpp"

namespace trireme::train {

/// Returns the number of ranks, this one included, that share the cores of this rank: those on one
/// host with equal lists of cores. Ranks that a launcher binds have separate lists. Collective.
int ranks_sharing_cores(const comm::Environment& environment);

/// Returns the reader threads for data.workers = "auto": the cores that computation leaves free, 1
/// to 4. `ranks_sharing` ranks share `cores`, and each computes with `threads` threads.
int choose_reader_threads(int cores, int ranks_sharing, int threads);

/// Returns the reader threads of this rank on `device`, and warns if the ranks that share cores
/// have more reader threads than cores. Collective.
int choose_reader_threads(const deck::Deck& deck, const comm::Environment& environment,
                          Device device, Log& log);

}  // namespace trireme::train
