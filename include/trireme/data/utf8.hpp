#pragma once

#include <cstddef>
#include <string_view>

namespace trireme::data {

/// The first byte that is not UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing past
/// U+10FFFF); text.size() where all are.
std::size_t first_invalid_byte(std::string_view text);

/// The longest part of text[0, limit) that ends between two characters; `limit` where there is no
/// such place near its end.
std::size_t character_boundary(std::string_view text, std::size_t limit);

}  // namespace trireme::data
