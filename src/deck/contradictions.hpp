#pragma once

#include "reader.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

/// Adds a mistake for every two keys that contradict each other. A key that is wrong by itself is
/// not judged again.
void find_contradictions(const Deck& deck, Reader& reader);

}  // namespace trireme::deck
