// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace trireme {

/// Returns whether a byte of UTF-8 continues a character of several bytes.
inline bool is_continuation_byte(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

/// Returns the position of the first byte that is not UTF-8, or text.size() if there is none. RFC
/// 3629: no overlong forms, no surrogates, nothing past U+10FFFF.
std::size_t first_invalid_byte(std::string_view text);

inline bool is_utf8(std::string_view text) { return first_invalid_byte(text) == text.size(); }

/// Returns the greatest position up to `limit` that is between two characters. Returns `limit` if
/// there is none within four bytes before it.
std::size_t character_boundary(std::string_view text, std::size_t limit);

}  // namespace trireme
