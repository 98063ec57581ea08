// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deck_fields.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

/// Visits all tables and keys of a deck in the order in which they are written. Every key is
/// declared here and nowhere else: name, type, valid range, and the condition under which it
/// exists.
void visit(Visitor& visitor, Deck& deck);

/// Visits the tables [data] and [data.augment], of which some keys belong to image models.
void visit_data(Visitor& visitor, model::ModelKind kind, data::DataOptions& data);

/// Visits the table [optimizer]. Some keys belong to kinds of the schedule too.
void visit_optimizer(Visitor& visitor, const optim::ScheduleOptions& schedule,
                     optim::OptimizerOptions& optimizer);

/// Visits the table [schedule]. Some keys belong to kinds of the optimizer too.
void visit_schedule(Visitor& visitor, optim::OptimizerKind optimizer,
                    optim::ScheduleOptions& schedule);

}  // namespace trireme::deck
