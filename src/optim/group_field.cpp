// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes optimizer.groups, an array of tables.
//
// [[optimizer.groups]] and groups = [{ ... }] are the same in TOML. The resolved deck has the
// second form, because it has one line for each key.
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "group_field.hpp"
#include "trireme/keys/table_fields.hpp"

namespace trireme::optim {

using namespace keys;

namespace {

constexpr std::size_t max_groups = 256;
constexpr const char* form = "{ match = \"fc.*\", rate_ratio = 10, decay = 0 }";
// The ratios are factors in float32.
constexpr NumberRange ratio_range{.min = 0, .max = 1e6, .min_open = true};

/// A factor of the rate. Zero would be a way to say "frozen" that still costs gradients.
Field rate_ratio(double& value) {
  Field field = real(value, ratio_range);
  field.read = [read = std::move(field.read)](const Value& given) {
    const std::string wrong = read(given);
    return given.number() == 0.0 ? wrong + "; frozen = true keeps the weights as they are" : wrong;
  };
  return field;
}

bool needs_no_norms(const UpdateRule& rule) { return rule.trust == nullptr; }

/// A rule in place of the optimizer's own, or none.
Field optional_rule(const UpdateRule*& rule) {
  Field field =
      omitted_if_default<const UpdateRule*>(rule, nullptr, rule_choice(rule, needs_no_norms));
  field.omitted_value.clear();
  return field;
}

void visit_group(Visitor& v, ParameterGroup& group, const UpdateRule& rule) {
  v.field({"match",
           "Sets the pattern of names.",
           {},
           "give a pattern of names of weights, as in match = \"fc.*\"; \"*\" matches every name"},
          text(group.match));
  v.field({"frozen", "Keeps the weights as they are."},
          omitted_if_default(group.frozen, false, flag(group.frozen)));
  const AppliesTo trained{!group.frozen, "weights that are trained, not to frozen = true", ""};
  v.field({"rate_ratio", "Multiplies the learning rate.", trained}, rate_ratio(group.rate_ratio));
  v.field({"decay", "Replaces the weight decay.", trained},
          optional_real(group.decay, at_least(0)));
  static const std::string with_ratios =
      "optimizer.kind = " +
      rule_words([](const UpdateRule& some) { return some.trust != nullptr; }, "\"");
  static const std::string with_matrices =
      "optimizer.kind = " +
      rule_words([](const UpdateRule& some) { return some.scope == RuleScope::matrix; }, "\"");
  const AppliesTo mixed =
      group.frozen ? trained
                   : AppliesTo{rule.scope == RuleScope::matrix, with_matrices.c_str(), ""};
  v.field({"rule", "Selects the rule.", mixed}, optional_rule(group.rule));
  const AppliesTo trusted =
      group.frozen ? trained : AppliesTo{rule.trust != nullptr, with_ratios.c_str(), ""};
  v.field({"trust", "Gives the tensors trust ratios.", trusted},
          omitted_if_default(group.trust, true, flag(group.trust)));
  v.field(
      {"trust_max",
       "Limits the trust ratios.",
       {trusted.is_met && group.trust,
        group.trust ? trusted.condition : "groups with trust ratios, not to trust = false", ""}},
      optional_real(group.trust_max, ratio_range));
}

}  // namespace

Field rule_choice(const UpdateRule*& rule, const std::function<bool(const UpdateRule&)>& property) {
  std::vector<std::pair<std::string, const UpdateRule*>> words;
  for (const UpdateRule* some : rules())
    if (property(*some)) words.emplace_back(some->word, some);
  return choice<const UpdateRule*>(rule, std::move(words));
}

Field parameter_groups(std::vector<ParameterGroup>& groups, const UpdateRule& rule) {
  const auto read = [&groups, &rule](const Value& given) -> std::string {
    const auto array = given.list();
    if (!array) return given.wrong_type(fmt::format("a list of tables, as in [{}]", form));
    if (array->size() > max_groups)
      return fmt::format("{} groups are too many; at most {}", array->size(), max_groups);
    std::vector<ParameterGroup> list;
    for (const Value& element : *array) {
      const std::string name = fmt::format("group {}", list.size() + 1);
      const auto table = element.table();
      if (!table)
        return fmt::format("{} {}", name, element.wrong_type(fmt::format("a table {}", form)));
      ParameterGroup group;
      const std::string wrong =
          read_table(*table, [&](Visitor& v) { visit_group(v, group, rule); });
      if (!wrong.empty()) return fmt::format("{}: {}", name, wrong);
      list.push_back(std::move(group));
    }
    groups = std::move(list);
    return "";
  };
  const auto write = [&groups, &rule] {
    std::vector<std::string> tables;
    for (ParameterGroup& group : groups)
      tables.push_back(write_table([&](Visitor& v) { visit_group(v, group, rule); }));
    return tables.empty() ? std::string() : fmt::format("[{}]", fmt::join(tables, ", "));
  };
  return {read, write, "list of tables",
          fmt::format("each {}, or {{ match = \"..\", frozen = true }}; rate_ratio more than 0 and "
                      "at most 1e6, decay at least 0, trust true or false, trust_max more than 0 "
                      "and at most 1e6, rule {}; at most {} of them",
                      form, rule_words(needs_no_norms, "\""), max_groups)};
}

}  // namespace trireme::optim
