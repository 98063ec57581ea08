// SPDX-License-Identifier: Apache-2.0
//
// Describes all keys of the deck for `trireme check --keys`.
//
// Order of events: visit decks of several kinds of models and schedules; describe every key that a
// visit finds; merge the lists. A key that has two forms (model.width, schedule.factor) gets one
// description for each, with the kind as its owner.
#include <algorithm>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "tables.hpp"
#include "writer.hpp"

namespace trireme::deck {

namespace {

/// A description and what is needed to merge it.
struct Found {
  KeyInfo info;
  bool applies = false;
  /// The owner if only this kind of its table has the key in this form. In a table without kinds
  /// it is the condition.
  std::string kind_owner;
};

/// Describes every key, also those whose condition is not met.
class Describer final : public Visitor {
 public:
  void table(const char* path) override {
    table_ = path;
    kind_.clear();
  }
  void field(const Key& key, const Field& field) override {
    const std::string written = field.write ? field.write() : "";
    const std::string path = table_ + "." + key.name;
    if (std::string_view(key.name) == "kind") kind_ = written;
    const bool required = key.missing_advice != nullptr;
    found.push_back({{.table = table_,
                      .key = key.name,
                      .type = field.type,
                      .range = field.range,
                      .default_value = required          ? std::string()
                                       : written.empty() ? field.omitted_value
                                                         : written,
                      .owner = key.applies_to.condition,
                      .meaning = key.meaning,
                      .required = required,
                      .fixed_at_restart = is_fixed_at_restart(path)},
                     key.applies_to.is_met,
                     kind_.empty() ? key.applies_to.condition : fmt::format("kind = {}", kind_)});
  }
  std::vector<Found> found;

 private:
  std::string table_, kind_;
};

std::vector<Found> describe(model::ModelKind model, optim::ScheduleKind schedule) {
  Deck deck;
  deck.model.kind = model;
  deck.schedule.kind = schedule;
  Describer describer;
  visit(describer, deck);
  return std::move(describer.found);
}

bool same_form(const KeyInfo& a, const KeyInfo& b) {
  return std::tie(a.type, a.range, a.default_value) == std::tie(b.type, b.range, b.default_value);
}

}  // namespace

std::vector<KeyInfo> keys() {
  using model::ModelKind;
  using optim::ScheduleKind;
  // All visits find the same keys in the same order. The first one is of the default deck.
  const std::vector<std::vector<Found>> visits = {
      describe(ModelKind::resnet, ScheduleKind::cosine),
      describe(ModelKind::gpt, ScheduleKind::cosine),
      describe(ModelKind::resnet, ScheduleKind::restarts),
      describe(ModelKind::resnet, ScheduleKind::plateau)};
  std::vector<KeyInfo> result;
  for (std::size_t i = 0; i < visits[0].size(); ++i) {
    std::vector<const Found*> forms;
    for (const std::vector<Found>& visit : visits) {
      const bool is_conditional = visit[i].applies && !visit[i].info.owner.empty();
      const auto is_same = [&](const Found* form) { return same_form(form->info, visit[i].info); };
      if (is_conditional && std::none_of(forms.begin(), forms.end(), is_same))
        forms.push_back(&visit[i]);
    }
    if (forms.size() < 2) {
      result.push_back(visits[0][i].info);
      continue;
    }
    for (const Found* form : forms) {
      result.push_back(form->info);
      result.back().owner = form->kind_owner;
    }
  }
  return result;
}

}  // namespace trireme::deck
