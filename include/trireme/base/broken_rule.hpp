// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>

namespace trireme {

/// A broken rule between several deck keys: the key to blame and a message with valid values.
///
/// The library that owns the rule makes it; the deck reports it with file and line.
struct BrokenRule {
  const char* key;
  std::string message;
};

/// Marks default values in messages, because the user does not find them in the deck.
class KeyNotes {
 public:
  /// Marks nothing.
  KeyNotes() = default;
  /// `is_default` returns whether a key is missing in the deck.
  explicit KeyNotes(std::function<bool(const char* key)> is_default)
      : is_default_(std::move(is_default)) {}
  bool is_default(const char* key) const { return is_default_ && is_default_(key); }
  /// Returns ", its default" if the key is missing in the deck, else "".
  const char* operator()(const char* key) const { return is_default(key) ? ", its default" : ""; }
  /// Returns the same with a closing comma, for use inside a sentence.
  const char* inner(const char* key) const { return is_default(key) ? ", its default," : ""; }

 private:
  std::function<bool(const char* key)> is_default_;
};

}  // namespace trireme
