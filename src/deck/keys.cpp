// Describes all keys of the deck for `trireme check --keys`.
//
// Order of events: visit the default deck of a resnet and that of a gpt; describe every key that a
// visit finds; merge the two lists. A key that has two forms (model.width, model.norm) gets one
// description for each, with the kind as its owner.
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
  std::string kind_owner;  ///< the owner if only this kind of model has the key in this form
};

/// Describes every key, also those whose condition is not met.
class Describer final : public Visitor {
 public:
  void table(const char* path) override { table_ = path; }
  void field(const Key& key, const Field& field) override {
    const std::string written = field.write ? field.write() : "";
    const std::string path = table_ + "." + key.name;
    if (path == "model.kind") kind_ = written;
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
                     fmt::format("kind = {}", kind_)});
  }
  std::vector<Found> found;

 private:
  std::string table_, kind_;
};

std::vector<Found> describe(model::ModelKind kind) {
  Deck deck;
  deck.model.kind = kind;
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
  // All visits find the same keys in the same order.
  const std::vector<Found> resnet = describe(ModelKind::resnet), gpt = describe(ModelKind::gpt);
  std::vector<KeyInfo> result;
  for (std::size_t i = 0; i < resnet.size(); ++i) {
    const bool is_conditional = !resnet[i].info.owner.empty();
    const bool two_forms = is_conditional && resnet[i].applies && gpt[i].applies &&
                           !same_form(resnet[i].info, gpt[i].info);
    if (!two_forms) {
      result.push_back(resnet[i].info);
      continue;
    }
    for (const Found* found : {&resnet[i], &gpt[i]}) {
      result.push_back(found->info);
      result.back().owner = found->kind_owner;
    }
  }
  return result;
}

}  // namespace trireme::deck
