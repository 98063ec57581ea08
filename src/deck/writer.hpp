#pragma once

#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"

namespace trireme::deck {

/// One key of a deck as it is written: table "data.augment", key "flip", TOML value "true".
struct Entry {
  std::string table, key, value;
};

/// All keys that belong to the deck's kinds, in their order.
std::vector<Entry> entries(const Deck& deck);

}  // namespace trireme::deck
