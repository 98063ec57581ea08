// SPDX-License-Identifier: Apache-2.0
#include "tables.hpp"
#include "writer.hpp"

namespace trireme::deck {

std::vector<Entry> entries(const Deck& deck) {
  // The tables serve reading and writing, so a visit needs a deck that can be changed.
  Deck copy = deck;
  return keys::entries([&](keys::Visitor& visitor) { visit(visitor, copy); });
}

std::string write(const Deck& deck) {
  Deck copy = deck;
  return keys::write_tables([&](keys::Visitor& visitor) { visit(visitor, copy); });
}

}  // namespace trireme::deck
