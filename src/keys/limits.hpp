// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::keys {

/// Most parts of a dotted key that the parser is given. A deck needs three (a.b.c). A key of
/// very many parts becomes a tree so deep that its destructor overflows the stack.
inline constexpr int max_key_parts = 64;

/// Returns the line (from 1) of the first key or table header with more than max_key_parts parts.
/// Returns 0 if there is none.
std::size_t line_of_deep_key(std::string_view text);

/// Returns the message with at most 2000 bytes and "...". If it is longer, values in quotes and
/// words are cut after 80 bytes, so that the reason behind them remains; if that is not enough, the
/// message is cut at its end. Cuts are between two characters.
std::string shorten_message(const std::string& message);

}  // namespace trireme::keys
