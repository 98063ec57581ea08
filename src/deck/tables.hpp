// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/deck/deck.hpp"
#include "trireme/keys/fields.hpp"

namespace trireme::deck {

/// Visits all tables and keys of a deck in the order in which they are written. Every key is
/// declared once: name, type, valid range, and the condition under which it exists.
void visit(keys::Visitor& visitor, Deck& deck);

}  // namespace trireme::deck
