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
  bool given(const std::string& path) const;
  /// Whether a mistake was found in it.
  bool wrong(const std::string& path) const { return wrong_.count(path) > 0; }
  /// Where each given key stands, as Deck::places has it.
  const std::map<std::string, std::string>& places() const { return places_; }
  /// Adds a mistake at the place of that key.
  void mistake(const std::string& path, const std::string& message);
  /// Once all tables are visited: throws all mistakes, unknown keys among them, in the order of the
  /// deck.
  void finish();

 private:
  struct Document;
  struct Table {
    std::vector<std::string> keys, foreign, tables;
    bool kind_wrong = false;  ///< so it is not known which keys belong
  };
  struct Mistake {
    std::string source, text;  ///< "deck.toml" or "--set a.b=c"
    unsigned line = 0, column = 0;
  };

  void apply(const Override& given);
  void add_unknown_keys();
  std::string unknown_key(const std::string& table, const std::string& key) const;

  std::string file_;
  std::unique_ptr<Document> document_;
  std::map<std::string, Table> tables_;
  std::string current_;
  std::map<std::string, std::string> overrides_;  ///< path -> text after the =
  std::map<std::string, std::string> places_;
  std::set<std::string> wrong_;
  std::vector<Mistake> mistakes_;
};

}  // namespace trireme::deck
