// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/optim/options.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::optim {

/// Returns whether a name matches a pattern, in which * stands for any characters (also none) and ?
/// for one.
bool matches(std::string_view pattern, std::string_view name);

/// Returns the first group that matches the name of a weight; null if there is none. Running
/// statistics are in no group.
const ParameterGroup* group_of(const std::vector<ParameterGroup>& groups,
                               const parallel::ParameterSpec& spec);
/// Returns whether the group of a weight freezes it.
bool is_frozen(const std::vector<ParameterGroup>& groups, const parallel::ParameterSpec& spec);

/// Throws InputError about optimizer.groups if a group has no weight of the model, or if it or the
/// whole optimizer has no matrix for a rule that needs one. The same if all weights are frozen, or
/// only a part of the tensors that one matrix product reads. `model`: the parameters of the whole
/// model.
void validate_groups(const OptimizerOptions& options, const parallel::ParameterList& model);
/// Describes the groups for the log: "fc.*": 2 tensors, 325 weights, rate x 10; one after the
/// other.
std::string describe_groups(const std::vector<ParameterGroup>& groups,
                            const parallel::ParameterList& model);
/// Returns the rule of a weight: that of its group, or the optimizer's own; for a weight that is
/// not a matrix, what that rule names for it.
const UpdateRule& rule_of(const OptimizerOptions& options, const parallel::ParameterSpec& spec);
/// Returns the rules of an optimizer, its own one first: those of groups and those that a rule
/// names for other weights too. The same on all ranks, whichever weights they have.
std::vector<const UpdateRule*> rules_of(const OptimizerOptions& options);
/// Describes the rules for the log if there are several: muon: 24 tensors, 85 weights; adamw: ...
std::string describe_rules(const OptimizerOptions& options, const parallel::ParameterList& model);
/// Prepares the parameters of `list` for training, before their layout is computed: freezes those
/// that the groups freeze, and keeps those whole whose rule needs it.
void prepare(const OptimizerOptions& options, parallel::ParameterList& list);

}  // namespace trireme::optim
