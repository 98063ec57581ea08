// SPDX-License-Identifier: Apache-2.0
//
// The list of families, the rules of tensor groups, and the table [model]: the key `kind`, and the
// keys of all families.
//
// A key is visited once, in its form of the chosen family. Keys that only other families have are
// visited too, with a condition that is not met, so that messages can name them.
#include "trireme/model/family.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/keys.hpp"

namespace trireme::model {

std::span<const Family* const> families() {
  extern const Family resnet_family, mlp_family, vit_family, transformer_family, chain_family;
  static constexpr const Family* all[] = {&resnet_family, &mlp_family, &vit_family,
                                          &transformer_family, &chain_family};
  return all;
}

ModelOptions::ModelOptions() : ModelOptions(*families().front()) {}
ModelOptions::ModelOptions(const Family& family) : family_(&family), values_(family.defaults()) {}

namespace {

/// Adds a family to a condition, as in `kind = "resnet", "vit" or "gpt"`.
void add_word(std::string& text, const Family& family) {
  constexpr std::string_view before_last = " or ";
  if (const std::size_t at = text.find(before_last); at != std::string::npos)
    text.replace(at, before_last.size(), ", ");
  text += fmt::format("{}\"{}\"", text.empty() ? "kind = " : before_last, family.word);
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

AnswerExtents outputs_of(const ModelOptions& options, const Shape& input, std::int64_t count,
                         bool is_map) {
  if (!is_map) return {count};
  const Family& family = family_of(options);
  const Shape map = family.makes_maps() ? family.map_of(options, input) : Shape();
  validate(map.rank() == 2,
           "target.kind: needs an answer for each pixel, but the model gives one for a sample; end "
           "model.blocks with a conv");
  return {count, map[0], map[1]};
}

std::string kinds_with(const std::function<bool(const Family&)>& property) {
  std::string text;
  for (const Family* family : families())
    if (property(*family)) add_word(text, *family);
  return text;
}

std::int64_t max_tensor_size(const ModelOptions& options) {
  std::int64_t size = 0;
  for (const Extent& extent : family_of(options).split_extents(options))
    size = std::gcd(size, extent.second);
  return std::max<std::int64_t>(size, 1);
}

std::optional<BrokenRule> broken_split_rule(const ModelOptions& options, std::int64_t tensor,
                                            const KeyNotes& notes) {
  if (tensor == 1) return std::nullopt;
  const std::vector<Extent> extents = family_of(options).split_extents(options);
  if (extents.empty())
    return BrokenRule{
        "parallel.tensor",
        fmt::format("{} splits the layers of model.{} only, not those of \"{}\"; use "
                    "tensor = 1 with more data ranks or stages",
                    tensor, kinds_with(&Family::splits_by_tensor), family_of(options).word)};
  for (const auto& [key, extent] : extents) {
    if (extent % tensor == 0) continue;
    return BrokenRule{"parallel.tensor",
                      fmt::format("{} does not divide {} = {}{} (each rank of a "
                                  "tensor group takes an equal part); use {}",
                                  tensor, key, extent, notes(key),
                                  nearest_divisors(tensor, max_tensor_size(options)))};
  }
  return std::nullopt;
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
      ModelOptions options(*family);
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
  std::vector<std::string> words;
  for (const Family* family : families()) words.emplace_back(family->word);
  const auto index = [&options] {
    return static_cast<std::size_t>(std::ranges::find(families(), &family_of(options)) -
                                    families().begin());
  };
  const auto select = [&options](std::size_t chosen) {
    if (families()[chosen] != &family_of(options)) options = ModelOptions(*families()[chosen]);
  };
  static const std::string meaning =
      fmt::format("Selects the kind of model: {}.", fmt::join(words, ", "));
  v.field({"kind", meaning.c_str()}, keys::choice_of(std::move(words), index, select));
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
  for (const Family* family : families()) {
    if (family == &chosen) continue;
    ModelOptions others(*family);
    visit(*family, others);
  }
}

void check_keys(const ModelOptions& options, Reader& reader) {
  if (!reader.any_wrong({"model.kind"})) family_of(options).check(options, reader);
}

}  // namespace trireme::model
