// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include <fmt/format.h>

#include "trireme/base/broken_rule.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/keys/reader.hpp"

namespace trireme::deck {

using keys::quoted, keys::Reader;

/// Returns whether one of the keys already has a mistake. Checks of several keys are then skipped.
inline bool any_wrong(const Reader& reader, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (reader.has_mistake(key)) return true;
  return false;
}

/// Returns the notes on values that the deck does not set.
inline KeyNotes notes_on(const Reader& reader) {
  return KeyNotes([&reader](const char* key) { return !reader.is_set(key); });
}
/// Adds a broken rule to the mistakes.
inline void report(Reader& reader, const BrokenRule& broken) {
  reader.add_mistake(broken.key, broken.message);
}

/// Checks of the keys of [model] for a gpt, and of [parallel]. Called by find_contradictions().
void check_model(const Deck& deck, Reader& reader);
void check_parallel(const Deck& deck, DeckPurpose purpose, Reader& reader);

}  // namespace trireme::deck
