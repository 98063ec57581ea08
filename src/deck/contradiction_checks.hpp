// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/deck/deck.hpp"
#include "trireme/keys/reader.hpp"

namespace trireme::deck {

using keys::quoted, keys::Reader;

/// Checks between [parallel] and other tables. Called by find_contradictions().
void check_parallel(const Deck& deck, DeckPurpose purpose, Reader& reader);

}  // namespace trireme::deck
