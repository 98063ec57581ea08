#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fields.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

/// Reads a deck: knows where each value stands, which keys there are, and gathers all mistakes.
class Reader final : public Visitor {
 public:
  /// Throws InputError where the text is no TOML.
  Reader(const std::string& text, std::string file, const std::vector<Override>& overrides);
  ~Reader() override;

  void table(const char* path) override;
  void field(const Key& key, const Field& field) override;

  /// Whether the deck gives the key "batch.global".
  bool is_set(const std::string& path) const;
  /// Whether a mistake was found in it.
  bool has_mistake(const std::string& path) const { return keys_with_mistake_.count(path) > 0; }
  /// Where each given key stands, as Deck::places has it.
  const std::map<std::string, std::string>& key_locations() const { return key_locations_; }
  /// Adds a mistake at the place of that key.
  void add_mistake(const std::string& path, const std::string& message);
  /// Once all tables are visited: throws all mistakes, unknown keys among them, in the order of the
  /// deck.
  void finish();

 private:
  struct Document;
  struct Table {
    std::vector<std::string> keys, inapplicable_keys, tables;
    bool kind_wrong = false;  ///< so it is not known which keys belong
  };
  struct Mistake {
    std::string source, text;  ///< "deck.toml" or "--set a.b=c"
    unsigned line = 0, column = 0;
  };

  void apply_override(const Override& given);
  void add_unknown_keys();
  std::string unknown_key_message(const std::string& table, const std::string& key) const;

  std::string file_;
  std::unique_ptr<Document> document_;
  std::map<std::string, Table> tables_;
  std::string current_table_;
  std::map<std::string, std::string> overrides_;  ///< path -> text after the =
  std::map<std::string, std::string> key_locations_;
  std::set<std::string> keys_with_mistake_;
  std::vector<Mistake> mistakes_;
};

}  // namespace trireme::deck
