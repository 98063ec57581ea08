#pragma once

#include "fields.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

/// Visits all tables and keys of a deck in the order in which they are written. Every key is
/// declared here and nowhere else: name, type, valid range, and the condition under which it
/// exists.
void visit(Visitor& visitor, Deck& deck);

/// Visits the tables [data] and [data.augment], of which some keys belong to image models.
void visit_data(Visitor& visitor, model::ModelKind kind, data::DataOptions& data);

}  // namespace trireme::deck
