// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/utf8.hpp"

#include <cstdint>

namespace trireme {

std::size_t first_invalid_byte(std::string_view text) {
  // The smallest valid character of each length in bytes; smaller ones are overlong forms.
  constexpr std::uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t bytes = lead < 0x80         ? 1
                              : lead >> 5 == 0x6  ? 2
                              : lead >> 4 == 0xE  ? 3
                              : lead >> 3 == 0x1E ? 4
                                                  : 0;
    if (bytes == 0 || bytes > text.size() - i) return i;
    std::uint32_t character = bytes == 1 ? lead : lead & (0x7Fu >> bytes);
    for (std::size_t j = 1; j < bytes; ++j) {
      if (!is_continuation_byte(text[i + j])) return i;
      character = character << 6 | (static_cast<unsigned char>(text[i + j]) & 0x3Fu);
    }
    if (character < smallest[bytes] || character > 0x10FFFF ||
        (character >= 0xD800 && character <= 0xDFFF))
      return i;
    i += bytes;
  }
  return text.size();
}

std::size_t character_boundary(std::string_view text, std::size_t limit) {
  constexpr std::size_t max_character_bytes = 4;
  for (std::size_t back = 0; back <= max_character_bytes && back < limit; ++back) {
    const std::size_t end = limit - back;
    if (end < text.size() ? !is_continuation_byte(text[end])
                          : static_cast<unsigned char>(text[end - 1]) < 0x80)
      return end;
  }
  return limit;
}

}  // namespace trireme
