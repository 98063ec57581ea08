// SPDX-License-Identifier: Apache-2.0
//
// The list of families, and the table [model]: the key `kind`, and the keys of all families.
//
// A key is visited once, in its form of the chosen family. Keys that only other families have are
// visited too, with a condition that is not met, so that messages can name them.
#include "families.hpp"

#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "trireme/model/keys.hpp"

namespace trireme::model {

std::span<const Family* const> families() {
  static constexpr const Family* all[] = {&resnet_family, &mlp_family, &transformer_family};
  return all;
}

const Family& family_of(const ModelOptions& options) {
  for (const Family* family : families())
    if (family->kind == options.kind) return *family;
  return *families().front();
}

namespace {

/// Adds a family to a condition, as in `kind = "resnet" or "gpt"`.
void add_word(std::string& text, const Family& family) {
  text += fmt::format("{}\"{}\"", text.empty() ? "kind = " : " or ", family.word);
}

/// Returns the condition of the families with a property.
template <class Property>
std::string kinds(const Property& property) {
  std::string text;
  for (const Family* family : families())
    if (property(*family)) add_word(text, *family);
  return text;
}

}  // namespace

std::optional<BrokenRule> no_batch_norm(const ModelOptions& options) {
  return BrokenRule{"model.kind",
                    fmt::format("model.kind = \"{}\" has none; use sync_batch_norm = false",
                                family_of(options).word)};
}

std::optional<BrokenRule> no_joined_norms(const ModelOptions& options) {
  return BrokenRule{"model.kind",
                    fmt::format("true joins norms of a residual network, but model.kind = \"{}\"; "
                                "remove it, or use kind = \"resnet\"",
                                family_of(options).word)};
}

std::string kinds_with(bool (*property)(const Family&)) { return kinds(property); }

std::string kinds_with(SampleKind input) {
  return kinds([=](const Family& family) { return family.input == input; });
}

namespace {

using keys::AppliesTo, keys::Field, keys::Key, keys::Reader, keys::Visitor;

/// Calls `visit` for each key.
template <class Visit>
class KeyVisitor final : public Visitor {
 public:
  explicit KeyVisitor(Visit visit) : visit_(std::move(visit)) {}
  void table(const char* /*path*/) override {}
  void field(const Key& key, const Field& field) override { visit_(key, field); }

 private:
  Visit visit_;
};

/// Returns the condition of each key of a family.
const std::map<std::string, std::string>& conditions() {
  static const std::map<std::string, std::string> texts = [] {
    std::map<std::string, std::string> found;
    for (const Family* family : families()) {
      ModelOptions options;
      KeyVisitor collect([&](const Key& key, const Field&) { add_word(found[key.name], *family); });
      family->visit(collect, options);
    }
    return found;
  }();
  return texts;
}

}  // namespace

void visit_keys(Visitor& v, ModelOptions& options) {
  v.table("model");
  std::vector<std::pair<std::string, ModelKind>> words;
  for (const Family* family : families()) words.emplace_back(family->word, family->kind);
  v.field({"kind", "Selects the kind of model: resnet, gpt (transformer) or mlp."},
          keys::choice<ModelKind>(options.kind, std::move(words)));
  const Family& chosen = family_of(options);
  std::map<std::string, const Family*> visited;
  const auto visit = [&](const Family& family, ModelOptions& of_family) {
    KeyVisitor pass([&](const Key& given, const Field& field) {
      if (visited.emplace(given.name, &family).first->second != &family) return;
      Key key = given;
      AppliesTo& condition = key.applies_to;
      if (condition.decided_by[0] == '\0')
        condition = {true, conditions().at(key.name).c_str(), "model.kind"};
      condition.is_met = condition.is_met && &family == &chosen;
      v.field(key, field);
    });
    family.visit(pass, of_family);
  };
  visit(chosen, options);
  ModelOptions others;
  for (const Family* family : families())
    if (family != &chosen) visit(*family, others);
}

void check_keys(const ModelOptions& options, Reader& reader) {
  if (!reader.any_wrong({"model.kind"})) family_of(options).check(options, reader);
}

void visit_keys(Visitor& v, LossOptions& loss) {
  v.table("loss");
  v.field({"label_smoothing",
           "Sets the share of the label's probability that is spread over all classes, from 0 to "
           "below 1."},
          keys::real(loss.label_smoothing, keys::half_open(0, 1)));
}

}  // namespace trireme::model
