// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/broken_rule.hpp"
#include "trireme/keys/fields.hpp"

namespace trireme::keys {

/// One command-line argument `--set key=value`, which replaces the file's value, or `--unset key`,
/// which removes it.
struct Override {
  std::string key;
  std::optional<std::string> value;  ///< none: the key is removed
};

/// The treatment of keys that have no effect, because their AppliesTo is not met.
enum class KeysWithoutEffect { reject, drop };

struct ReaderOptions {
  std::vector<Override> overrides = {};
  KeysWithoutEffect without_effect = KeysWithoutEffect::reject;
  /// Pairs of keys of which a file has one: either says the same thing in another way. An override
  /// of one removes the other.
  std::span<const std::pair<const char*, const char*>> alternatives = {};
};

/// Reads a deck, or another file of tables such as a machine file, and collects all its mistakes.
///
/// Use: construct, visit all tables, add mistakes of your own, then finish(). Only the constructor
/// and finish() throw.
class Reader final : public Visitor {
 public:
  /// Parses the text and applies the overrides. Throws InputError if the text is not valid TOML.
  Reader(const std::string& text, std::string file, const ReaderOptions& options = {});
  ~Reader() override;

  void table(const char* path) override;
  void field(const Key& key, const Field& field) override;

  /// Returns whether the deck or an override sets the key, as in "batch.global".
  bool is_set(const std::string& path) const;
  /// Returns whether the key has a mistake.
  bool has_mistake(const std::string& path) const { return keys_with_mistake_.count(path) > 0; }
  /// Returns whether one of the keys has a mistake. Checks of several keys are then skipped.
  bool any_wrong(std::initializer_list<const char*> paths) const;
  /// Returns the notes on values that the file does not set.
  KeyNotes notes() const;
  /// Returns the location of each key that is set; see Deck::key_locations.
  const std::map<std::string, std::string>& key_locations() const { return key_locations_; }
  /// Returns the paths of the keys that were dropped, in the order of the visit.
  const std::vector<std::string>& dropped_keys() const { return dropped_keys_; }
  /// Returns how to remove a key that is set: on the command line, if that has overrides already.
  std::string removal_advice(const std::string& path) const;
  /// Adds a mistake at the location of the key, or of its table if the key is missing.
  void add_mistake(const std::string& path, const std::string& message);
  void add_mistake(const BrokenRule& broken) { add_mistake(broken.key, broken.message); }
  /// Looks for unknown keys, then throws one InputError with all mistakes in the order of the
  /// file. Returns if there are none. Call it after all tables are visited.
  void finish();

 private:
  struct Document;
  struct Table {
    std::vector<std::string> keys, inapplicable_keys, tables;
    /// Keys whose condition is unknown, since the key that decides about them has a mistake, and
    /// the path of that key.
    std::map<std::string, std::string> undecided_keys;
  };
  struct Mistake {
    std::string source, text;  ///< source: "deck.toml" or "--set a.b=c"
    unsigned line = 0, column = 0;
  };

  /// Replaces, inserts or removes one value. A bad override becomes a mistake.
  void apply_override(const Override& given);
  /// Returns the key that this one replaces; "" if there is none.
  std::string replaced_key(const std::string& key) const;
  void add_unknown_keys();
  std::map<std::string, std::string>::const_iterator override_within(const std::string& path) const;
  std::string unknown_key_message(const std::string& table, const std::string& key) const;

  std::string file_;
  KeysWithoutEffect without_effect_;
  std::span<const std::pair<const char*, const char*>> alternatives_;
  std::unique_ptr<Document> document_;
  std::map<std::string, Table> tables_;
  std::string current_table_;
  std::map<std::string, std::string> overrides_;  ///< path -> text after the "="
  bool has_overrides_ = false;                    ///< --set or --unset
  std::map<std::string, std::string> key_locations_;
  std::vector<std::string> dropped_keys_;
  std::set<std::string> keys_with_mistake_;
  std::vector<Mistake> mistakes_;
};

/// Returns the text of a file. Throws InputError if it cannot be read or is longer than 1 MiB.
std::string read_file(const std::string& path);

}  // namespace trireme::keys
