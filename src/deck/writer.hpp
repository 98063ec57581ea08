// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"
#include "trireme/keys/writer.hpp"

namespace trireme::deck {

using keys::Entry;

/// Returns all keys that apply to the deck's kinds, in the order of tables.cpp.
std::vector<Entry> entries(const Deck& deck);

/// Returns whether a restart must not change this key, as in "run.seed". These keys determine the
/// tensors, the random numbers, the order of samples, and the state that a checkpoint holds between
/// steps.
bool is_fixed_at_restart(const std::string& path);

}  // namespace trireme::deck
