#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::deck {

/// No file longer than this is a deck.
inline constexpr std::size_t max_deck_bytes = 1 << 20;
/// The keys of a deck have three parts at most (a.b.c). A key of very many parts is a tree so deep
/// that it could not be taken down on the stack.
inline constexpr int max_key_parts = 64;

/// The line (from 1) of the first key or header of more than most_key_parts parts; 0 where there is
/// none.
std::size_t line_of_deep_key(std::string_view text);

bool is_utf8(std::string_view text);

/// The text for a message: shortened where it is long, bytes that are no printable ASCII as \xNN.
std::string printable(std::string_view text);

/// A message cut where it goes on without end, between two characters.
std::string truncate_message(std::string message);

}  // namespace trireme::deck
