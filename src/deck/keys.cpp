// SPDX-License-Identifier: Apache-2.0
//
// Describes all keys of the deck for `trireme check --keys`.
//
// Order of events: visit decks of each family of models and of several schedules; describe every
// key that a visit finds; merge the lists. A key that has two forms (model.width, schedule.factor)
// gets one description for each, with the kind as its owner.
#include <algorithm>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "tables.hpp"
#include "trireme/model/family.hpp"
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
class Describer final : public keys::Visitor {
 public:
  void table(const char* path) override {
    table_ = path;
    kind_.clear();
  }
  void field(const keys::Key& key, const keys::Field& field) override {
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

std::vector<Found> describe(const model::Family& model, optim::ScheduleKind schedule) {
  Deck deck;
  deck.model = model::ModelOptions(model);
  deck.schedule.kind = schedule;
  Describer describer;
  visit(describer, deck);
  return std::move(describer.found);
}

bool same_form(const KeyInfo& a, const KeyInfo& b) {
  const auto form = [](const KeyInfo& key) {
    return std::tie(key.type, key.range, key.default_value, key.meaning);
  };
  return form(a) == form(b);
}

}  // namespace

std::vector<KeyInfo> keys() {
  using optim::ScheduleKind;
  // Each visit finds all keys. The first one decides their order.
  std::vector<std::vector<Found>> visits;
  for (const model::Family* family : model::families())
    visits.push_back(describe(*family, ScheduleKind::cosine));
  for (const ScheduleKind kind : {ScheduleKind::restarts, ScheduleKind::plateau})
    visits.push_back(describe(*model::families().front(), kind));
  std::vector<KeyInfo> result;
  for (const Found& key : visits.front()) {
    std::vector<const Found*> forms;
    for (const std::vector<Found>& visit : visits) {
      for (const Found& found : visit) {
        const auto is_same = [&](const Found* form) { return same_form(form->info, found.info); };
        if (found.info.table == key.info.table && found.info.key == key.info.key && found.applies &&
            !found.info.owner.empty() && std::none_of(forms.begin(), forms.end(), is_same))
          forms.push_back(&found);
      }
    }
    if (forms.size() < 2) {
      result.push_back(key.info);
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
