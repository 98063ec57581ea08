// SPDX-License-Identifier: Apache-2.0
//
// Parameter groups: assigns the weights of a model to the deck's [[optimizer.groups]] by their
// names.
//
// StageParameters (src/train) checks the groups against the whole model and freezes weights of this
// rank before their layout is computed. The optimizer reads rate ratios and weight decays.
#include "trireme/optim/groups.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include <fmt/ranges.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::optim {
namespace {

using parallel::ParameterList;

/// Returns "group 2 (match = "fc.*")", counted from 1.
std::string described(const std::vector<ParameterGroup>& groups, std::size_t index) {
  return fmt::format("group {} (match = \"{}\")", index + 1, printable(groups[index].match, 80));
}

/// Returns the names of some weights for a message: the first ones and the last one.
std::string some_names(const std::vector<const ParameterList::Entry*>& weights) {
  constexpr std::size_t first_names = 4;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(first_names, weights.size()); ++i)
    names.push_back(weights[i]->spec.name);
  if (weights.size() > first_names + 1) names.emplace_back("...");
  if (weights.size() > first_names) names.push_back(weights.back()->spec.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns the number of the weights of a model that have a property: "2 tensors, 325 weights".
std::string counted_weights(const ParameterList& model,
                            const std::function<bool(const parallel::ParameterSpec&)>& property) {
  std::int64_t tensors = 0, weights = 0;
  for (const ParameterList::Entry& entry : model.entries()) {
    if (entry.spec.role != parallel::Role::weight || !property(entry.spec)) continue;
    ++tensors;
    weights += entry.spec.shape.elements();
  }
  return fmt::format("{}, {}", counted(tensors, "tensor", "tensors"),
                     counted(weights, "weight", "weights"));
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  // On a mismatch the last star takes one more character; earlier ones need not change.
  std::size_t at = 0, position = 0, star = std::string_view::npos, star_position = 0;
  while (position < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      star_position = position;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == name[position])) {
      ++at;
      ++position;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      position = ++star_position;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == std::string_view::npos;
}

const ParameterGroup* group_of(const std::vector<ParameterGroup>& groups,
                               const parallel::ParameterSpec& spec) {
  if (spec.role == parallel::Role::statistic) return nullptr;
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const ParameterGroup& group) {
    return matches(group.match, spec.name);
  });
  return found == groups.end() ? nullptr : &*found;
}

bool is_frozen(const std::vector<ParameterGroup>& groups, const parallel::ParameterSpec& spec) {
  const ParameterGroup* group = group_of(groups, spec);
  return group != nullptr && group->frozen;
}

void validate_groups(const OptimizerOptions& options, const ParameterList& model) {
  const std::vector<ParameterGroup>& groups = options.groups;
  std::vector<const ParameterList::Entry*> weights;
  for (const ParameterList::Entry& entry : model.entries())
    if (entry.spec.role == parallel::Role::weight) weights.push_back(&entry);
  const auto has_own_rule = [&](const ParameterList::Entry* entry) {
    return !is_frozen(groups, entry->spec) && &rule_of(options, entry->spec) == options.rule;
  };
  if (options.rule->scope == RuleScope::matrix && !weights.empty())
    validate(std::ranges::any_of(weights, has_own_rule),
             "optimizer.kind = \"{}\" is for matrices of hidden layers, but {}", options.rule->word,
             groups.empty()
                 ? fmt::format("the model has none; use kind = \"{}\"",
                               options.rule->rule_of_others->word)
                 : "the groups freeze all of them or give them another rule; leave it some, or use "
                   "another kind");
  if (groups.empty()) return;
  // 1. Every group has weights.
  for (std::size_t index = 0; index < groups.size(); ++index) {
    const auto matching =
        std::count_if(weights.begin(), weights.end(), [&](const ParameterList::Entry* entry) {
          return matches(groups[index].match, entry->spec.name);
        });
    validate(matching > 0,
             "optimizer.groups: {} matches no weight of the model; correct match, or remove the "
             "group; the weights are {}",
             described(groups, index), some_names(weights));
    validate(std::any_of(weights.begin(), weights.end(),
                         [&](const ParameterList::Entry* entry) {
                           return group_of(groups, entry->spec) == &groups[index];
                         }),
             "optimizer.groups: {} has no effect: earlier groups match its {} too, and the first "
             "match counts; move it in front of them, or remove it",
             described(groups, index), counted(matching, "weight", "weights"));
  }
  // 2. A rule of matrices has some.
  for (std::size_t index = 0; index < groups.size(); ++index) {
    const UpdateRule* rule = groups[index].rule;
    if (rule == nullptr || rule->scope != RuleScope::matrix) continue;
    validate(
        std::ranges::any_of(weights,
                            [&](const ParameterList::Entry* entry) {
                              return group_of(groups, entry->spec) == &groups[index] &&
                                     &rule_of(options, entry->spec) == rule;
                            }),
        "optimizer.groups: {} has rule = \"{}\", which is for matrices of hidden layers, but no "
        "such matrix: biases, norms, embeddings and the head have rule \"{}\"; remove rule",
        described(groups, index), rule->word, rule->rule_of_others->word);
  }
  // 3. Something is trained.
  validate(!std::all_of(
               weights.begin(), weights.end(),
               [&](const ParameterList::Entry* entry) { return is_frozen(groups, entry->spec); }),
           "optimizer.groups: all {} of the model are frozen, so nothing would be trained; leave "
           "some of them out of the groups with frozen = true",
           counted(static_cast<std::int64_t>(weights.size()), "weight", "weights"));
  // 4. Joined tensors are one operand of a matrix product.
  for (std::size_t index = 1; index < model.entries().size(); ++index) {
    const parallel::ParameterSpec &spec = model.entries()[index].spec,
                                  &before = model.entries()[index - 1].spec;
    if (!spec.joined) continue;
    const bool frozen = is_frozen(groups, spec);
    validate(frozen == is_frozen(groups, before),
             "optimizer.groups: freezes {}, but not {}; one matrix product reads both, so freeze "
             "both or none",
             frozen ? spec.name : before.name, frozen ? before.name : spec.name);
  }
}

std::string describe_groups(const std::vector<ParameterGroup>& groups, const ParameterList& model) {
  std::vector<std::string> texts;
  for (const ParameterGroup& group : groups) {
    std::string text = fmt::format("\"{}\": {}", printable(group.match, 80),
                                   counted_weights(model, [&](const parallel::ParameterSpec& spec) {
                                     return group_of(groups, spec) == &group;
                                   }));
    if (group.frozen) text += ", frozen";
    if (group.rule != nullptr) text += fmt::format(", rule {}", group.rule->word);
    if (group.rate_ratio != 1) text += fmt::format(", rate x {}", group.rate_ratio);
    if (group.decay) text += fmt::format(", decay {}", *group.decay);
    if (!group.trust) text += ", without trust ratios";
    if (group.trust_max) text += fmt::format(", trust ratios at most {}", *group.trust_max);
    texts.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

std::vector<const UpdateRule*> rules_of(const OptimizerOptions& options) {
  std::vector<const UpdateRule*> rules;
  const auto add = [&](const UpdateRule* rule) {
    for (; rule != nullptr; rule = rule->rule_of_others)
      if (std::ranges::find(rules, rule) == rules.end()) rules.push_back(rule);
  };
  add(options.rule);
  for (const ParameterGroup& group : options.groups) add(group.rule);
  return rules;
}

std::string describe_rules(const OptimizerOptions& options, const ParameterList& model) {
  const std::vector<const UpdateRule*> rules = rules_of(options);
  std::vector<std::string> texts;
  for (const UpdateRule* rule : rules) {
    texts.push_back(fmt::format(
        "{}: {}", rule->word, counted_weights(model, [&](const parallel::ParameterSpec& spec) {
          return !is_frozen(options.groups, spec) && &rule_of(options, spec) == rule;
        })));
  }
  return rules.size() < 2 ? "" : fmt::format("{}", fmt::join(texts, "; "));
}

const UpdateRule& rule_of(const OptimizerOptions& options, const parallel::ParameterSpec& spec) {
  const ParameterGroup* group = group_of(options.groups, spec);
  const UpdateRule& rule =
      group != nullptr && group->rule != nullptr ? *group->rule : *options.rule;
  const bool is_other = rule.scope == RuleScope::matrix && spec.form == parallel::MatrixForm::none;
  return is_other ? *rule.rule_of_others : rule;
}

void prepare(const OptimizerOptions& options, ParameterList& list) {
  for (std::size_t index = 0; index < list.entries().size(); ++index) {
    const parallel::ParameterSpec& spec = list.entries()[index].spec;
    const parallel::ParameterId id{static_cast<std::int32_t>(index)};
    if (is_frozen(options.groups, spec)) {
      list.freeze(id);
    } else if (spec.role == parallel::Role::weight &&
               rule_of(options, spec).scope == RuleScope::matrix) {
      list.set_atom(id, parallel::Atom::tensor);
    }
  }
}

}  // namespace trireme::optim
