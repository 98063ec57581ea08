// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/deck/deck.hpp"
#include "trireme/keys/reader.hpp"

namespace trireme::deck {

using keys::Reader;

/// Adds a mistake to `reader` for each pair of keys that contradict each other. A key that already
/// has a mistake of its own is skipped, so one wrong value is reported once.
void find_contradictions(const Deck& deck, DeckPurpose purpose, Reader& reader);

}  // namespace trireme::deck
