// SPDX-License-Identifier: Apache-2.0
//
// Writes a deck as TOML: visits all tables and collects the keys that apply.
#include <fmt/format.h>

#include "tables.hpp"
#include "writer.hpp"

namespace trireme::deck {

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

std::string format(const std::vector<Entry>& entries) {
  std::string text, table;
  for (const Entry& entry : entries) {
    if (entry.table != table) {
      table = entry.table;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", table);
    }
    text += fmt::format("{} = {}\n", entry.key, entry.value);
  }
  return text;
}

}  // namespace

std::vector<Entry> entries(const Deck& deck) {
  Writer writer;
  // The tables serve reading and writing, so a visit needs a deck that can be changed.
  Deck copy = deck;
  visit(writer, copy);
  return std::move(writer.entries);
}

std::string write_tables(const std::function<void(Visitor&)>& visit) {
  Writer writer;
  visit(writer);
  return format(writer.entries);
}

std::string write(const Deck& deck) { return format(entries(deck)); }

}  // namespace trireme::deck
