// SPDX-License-Identifier: Apache-2.0
//
// Tables that are values: reads and writes their keys through the fields that also files have.
#include "trireme/keys/table_fields.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/text.hpp"
#include "trireme/keys/writer.hpp"

namespace trireme::keys {

namespace {

/// Reads each key that it visits, until there is a mistake.
class TableReader final : public Visitor {
 public:
  explicit TableReader(const Table& values) : values_(values) {}
  void table(const char* /*path*/) override {}
  void field(const Key& key, const Field& field) override {
    const bool applies = key.applies_to.is_met;
    (applies ? keys_ : others_).emplace_back(key.name);
    if (!wrong_.empty()) return;
    const Value* const given = find(values_, key.name);
    if (!given) {
      if (!applies || !key.missing_advice || !missing_.empty()) return;
      missing_ = key.name;
      advice_ = key.missing_advice;
      return;
    }
    if (!applies) {
      if (unused_.empty())
        unused_ = fmt::format("{} belongs to {}; remove it", key.name, key.applies_to.condition);
      return;
    }
    if (const std::string why = field.read(*given); !why.empty())
      wrong_ = fmt::format("{}: {}", key.name, why);
  }

  /// Returns the message about the first mistake. What is missing may have another name, and a
  /// value that is missing or wrong may decide which keys there are.
  std::string message() const {
    if (!wrong_.empty()) return wrong_;
    const std::vector<std::string> wanted =
        missing_.empty() ? keys_ : std::vector<std::string>{missing_};
    for (const auto& [name, value] : values_) {
      if (is_among(name, keys_) || is_among(name, others_)) continue;
      if (const std::string guess = nearest(name, wanted); !guess.empty())
        return fmt::format("{} is an unknown key, did you mean {}?", quoted(name), quoted(guess));
      if (missing_.empty())
        return fmt::format("{} is an unknown key; the keys are {}", quoted(name),
                           fmt::join(keys_, ", "));
    }
    if (!unused_.empty()) return unused_;
    return missing_.empty() ? "" : fmt::format("{} is missing; {}", missing_, advice_);
  }

 private:
  static bool is_among(const std::string& name, const std::vector<std::string>& names) {
    return std::ranges::find(names, name) != names.end();
  }
  const Table& values_;
  std::vector<std::string> keys_, others_;
  std::string wrong_, unused_, missing_, advice_;
};

}  // namespace

std::string read_table(const Table& table, const std::function<void(Visitor&)>& visit) {
  TableReader reader(table);
  visit(reader);
  return reader.message();
}

std::string write_table(const std::function<void(Visitor&)>& visit) {
  std::vector<std::string> parts;
  for (const Entry& entry : entries(visit))
    parts.push_back(fmt::format("{} = {}", entry.key, entry.value));
  return fmt::format("{{ {} }}", fmt::join(parts, ", "));
}

}  // namespace trireme::keys
