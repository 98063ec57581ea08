#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include <fmt/format.h>

#include "reader.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

/// Returns whether one of the keys already has a mistake. Checks of several keys are then skipped.
inline bool any_wrong(const Reader& reader, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (reader.has_mistake(key)) return true;
  return false;
}

/// Returns ", its default" if the deck does not set the key, else "". Messages append it to a value
/// that the user would not find in the deck.
inline const char* default_note(const Reader& reader, const char* key) {
  return reader.is_set(key) ? "" : ", its default";
}
/// The same with a closing comma, for use inside a sentence.
inline const char* inner_default_note(const Reader& reader, const char* key) {
  return reader.is_set(key) ? "" : ", its default,";
}

/// Returns the divisors of `whole` next to `value` on both sides: "3 or 6".
inline std::string nearest_divisors(std::int64_t value, std::int64_t whole) {
  std::int64_t below = value < whole ? value : whole, above = value;
  while (whole % below != 0) --below;
  while (above <= whole && whole % above != 0) ++above;
  return above > whole || above == below ? fmt::format("{}", below)
                                         : fmt::format("{} or {}", below, above);
}

/// Checks of the keys of [model] for a gpt, and of [parallel]. Called by find_contradictions().
void check_model(const Deck& deck, Reader& reader);
void check_parallel(const Deck& deck, Reader& reader);

}  // namespace trireme::deck
