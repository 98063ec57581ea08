#pragma once

#include <functional>
#include <optional>
#include <string>

namespace trireme {

/// A rule between several values of a user that they break: the deck key to blame and a message
/// with the values that would be valid.
///
/// The library that owns the rule makes it; the deck reports it with file and line.
struct BrokenRule {
  const char* key;
  std::string message;
};

/// Notes that messages add to values that the user did not write, and so would not find.
class KeyNotes {
 public:
  /// Adds no notes.
  KeyNotes() = default;
  /// `is_default` returns whether a key is missing in the deck.
  explicit KeyNotes(std::function<bool(const char* key)> is_default)
      : is_default_(std::move(is_default)) {}
  bool is_default(const char* key) const { return is_default_ && is_default_(key); }
  /// Returns ", its default" if the user did not write the key, else "".
  const char* operator()(const char* key) const { return is_default(key) ? ", its default" : ""; }
  /// Returns the same with a closing comma, for use inside a sentence.
  const char* inner(const char* key) const { return is_default(key) ? ", its default," : ""; }

 private:
  std::function<bool(const char* key)> is_default_;
};

}  // namespace trireme
