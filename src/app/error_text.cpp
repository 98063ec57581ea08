#include "error_text.hpp"

#include <regex>

namespace trireme::app {

std::string error_text(const std::string& message) {
  static const std::regex place(R"(--set \S+=|[^\n]*?:\d+:\d+: |[^\n:]*: \[)");
  const bool names_its_place = std::regex_search(message, place, std::regex_constants::match_continuous);
  return names_its_place ? message : "trireme: error: " + message;
}

}  // namespace trireme::app
