// SPDX-License-Identifier: Apache-2.0
#include "command_description.hpp"

#include <algorithm>
#include <cctype>

namespace trireme::app {

std::vector<std::string> OptionDescription::words() const {
  std::vector<std::string> result;
  for (std::size_t begin = 0; begin < value.size();) {
    const std::size_t end = std::min(value.find('|', begin), value.size());
    const std::string word = value.substr(begin, end - begin);
    const bool is_typed = std::all_of(word.begin(), word.end(), [](unsigned char letter) {
      return std::islower(letter) != 0 || std::isdigit(letter) != 0 || letter == '-';
    });
    if (is_typed && !word.empty()) result.push_back(word);
    begin = end + 1;
  }
  return result;
}

std::string OptionDescription::value_text() const {
  return value + (default_value.empty() ? "" : "=" + default_value) + (is_repeated ? " ..." : "");
}

}  // namespace trireme::app
