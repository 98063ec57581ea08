// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/path_check.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "trireme/base/check.hpp"

namespace trireme {

bool is_address(std::string_view path) {
  const std::size_t colon = path.find("://");
  return colon != std::string_view::npos && colon > 0 &&
         std::all_of(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(colon),
                     [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; });
}

void reject_address(std::string_view where, std::string_view path) {
  validate(!is_address(path), "{}: {}", where, address_advice);
}

}  // namespace trireme
