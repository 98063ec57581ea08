// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/keys/reader.hpp"
#include "trireme/optim/options.hpp"

namespace trireme::optim {

/// Visits the table [optimizer]. Some keys belong to kinds of the schedule too.
void visit_keys(keys::Visitor& visitor, const ScheduleOptions& schedule, OptimizerOptions& options);
/// Visits the table [schedule]. Some keys belong to kinds of the optimizer too.
void visit_keys(keys::Visitor& visitor, const UpdateRule& rule, ScheduleOptions& options);
/// Sets the keys that are not given to the defaults of the optimizer's kind.
void fill_in_defaults(OptimizerOptions& options, const keys::Reader& reader);
/// Adds a mistake for each pair of keys of both tables that contradict each other.
void check_keys(const ScheduleOptions& schedule, const OptimizerOptions& optimizer,
                keys::Reader& reader);
/// Visits the table [precision.loss_scale]. `float16`: the condition of its keys.
void visit_keys(keys::Visitor& visitor, const keys::AppliesTo& float16, LossScaleOptions& options);

}  // namespace trireme::optim
