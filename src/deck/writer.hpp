#pragma once

#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"

namespace trireme::deck {

/// One key of a deck in written form: table "data.augment", key "flip", TOML value "true".
struct Entry {
  std::string table, key, value;
};

/// Returns all keys that apply to the deck's kinds, in the order of tables.cpp.
std::vector<Entry> entries(const Deck& deck);

}  // namespace trireme::deck
