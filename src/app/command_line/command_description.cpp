// SPDX-License-Identifier: Apache-2.0
#include "command_description.hpp"

#include <algorithm>
#include <cctype>

namespace trireme::app {
namespace {

/// Returns the parts of a value that are separated by bars.
std::vector<std::string> alternatives(const std::string& value) {
  std::vector<std::string> result;
  for (std::size_t begin = 0; begin < value.size();) {
    const std::size_t end = std::min(value.find('|', begin), value.size());
    if (end > begin) result.push_back(value.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

/// Returns whether an alternative is typed as it is.
bool is_typed(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](unsigned char letter) {
    return std::islower(letter) != 0 || std::isdigit(letter) != 0 || letter == '-';
  });
}

}  // namespace

std::vector<std::string> OptionDescription::words() const {
  std::vector<std::string> result = alternatives(value);
  result.erase(std::remove_if(result.begin(), result.end(),
                              [](const std::string& word) { return !is_typed(word); }),
               result.end());
  return result;
}

bool OptionDescription::takes_other_words() const {
  const std::vector<std::string> all = alternatives(value);
  return !std::all_of(all.begin(), all.end(), is_typed);
}

std::string OptionDescription::value_text() const {
  return value + (default_value.empty() ? "" : "=" + default_value) + (is_repeated ? " ..." : "");
}

}  // namespace trireme::app
