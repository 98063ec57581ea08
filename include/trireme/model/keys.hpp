// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/base/answer.hpp"
#include "trireme/keys/reader.hpp"
#include "trireme/model/options.hpp"

namespace trireme::model {

/// Visits the table [model].
void visit_keys(keys::Visitor& visitor, ModelOptions& options);
/// Adds a mistake for each pair of keys of [model] that contradict each other.
void check_keys(const ModelOptions& options, keys::Reader& reader);
/// Visits the table [loss] of a model with this answer.
void visit_keys(keys::Visitor& visitor, AnswerKind answer, LossOptions& options);

}  // namespace trireme::model
