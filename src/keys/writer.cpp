// SPDX-License-Identifier: Apache-2.0
#include "trireme/keys/writer.hpp"

#include <utility>

#include <fmt/format.h>

namespace trireme::keys {

namespace {

/// Collects the written form of each key that applies and is not left out.
class Writer final : public Visitor {
 public:
  void table(const char* path) override { table_ = path; }
  void field(const Key& key, const Field& field) override {
    if (!key.applies_to.is_met) return;
    if (std::string value = field.write(); !value.empty())
      entries.push_back({table_, key.name, std::move(value)});
  }
  std::vector<Entry> entries;

 private:
  std::string table_;
};

}  // namespace

std::vector<Entry> entries(const std::function<void(Visitor&)>& visit) {
  Writer writer;
  visit(writer);
  return std::move(writer.entries);
}

std::string write_tables(const std::function<void(Visitor&)>& visit) {
  std::string text, table;
  for (const Entry& entry : entries(visit)) {
    if (entry.table != table) {
      table = entry.table;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", table);
    }
    text += fmt::format("{} = {}\n", entry.key, entry.value);
  }
  return text;
}

}  // namespace trireme::keys
