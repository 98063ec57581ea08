#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include <fmt/format.h>

#include "reader.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::deck {

/// Whether one of the keys is wrong by itself: then it is not judged together with others.
inline bool judged_already(const Reader& reader, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (reader.wrong(key)) return true;
  return false;
}

/// ", its default" where the deck does not give the key: the reader of the message would look for
/// it in vain.
inline const char* origin(const Reader& reader, const char* key) {
  return reader.given(key) ? "" : ", its default";
}
/// The same within a sentence that goes on.
inline const char* inner_origin(const Reader& reader, const char* key) {
  return reader.given(key) ? "" : ", its default,";
}

/// "3 or 6": the divisors of `whole` on both sides of `value`.
inline std::string divisors(std::int64_t value, std::int64_t whole) {
  std::int64_t below = value < whole ? value : whole, above = value;
  while (whole % below != 0) --below;
  while (above <= whole && whole % above != 0) ++above;
  return above > whole || above == below ? fmt::format("{}", below)
                                         : fmt::format("{} or {}", below, above);
}

/// The contradictions among the keys of [model] and [parallel].
void judge_gpt(const Deck& deck, Reader& reader);
void judge_parallel(const Deck& deck, Reader& reader);

}  // namespace trireme::deck
