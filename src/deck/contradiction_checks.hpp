#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include <fmt/format.h>

#include "reader.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

/// Whether one of the keys is wrong by itself: then it is not judged together with others.
inline bool any_wrong(const Reader& reader, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (reader.has_mistake(key)) return true;
  return false;
}

/// ", its default" where the deck does not give the key: the reader of the message would look for
/// it in vain.
inline const char* default_note(const Reader& reader, const char* key) {
  return reader.is_set(key) ? "" : ", its default";
}
/// The same within a sentence that goes on.
inline const char* inner_default_note(const Reader& reader, const char* key) {
  return reader.is_set(key) ? "" : ", its default,";
}

/// "3 or 6": the divisors of `whole` on both sides of `value`.
inline std::string nearest_divisors(std::int64_t value, std::int64_t whole) {
  std::int64_t below = value < whole ? value : whole, above = value;
  while (whole % below != 0) --below;
  while (above <= whole && whole % above != 0) ++above;
  return above > whole || above == below ? fmt::format("{}", below)
                                         : fmt::format("{} or {}", below, above);
}

/// The contradictions among the keys of [model] and [parallel].
void check_model(const Deck& deck, Reader& reader);
void check_parallel(const Deck& deck, Reader& reader);

}  // namespace trireme::deck
