// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/clock.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>

namespace trireme {

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::optional<double> parse_utc(const std::string& text) {
  std::tm parts{};
  const char* const end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return static_cast<double>(timegm(&parts));
}

std::string utc_timestamp() { return utc_timestamp(static_cast<double>(std::time(nullptr))); }

std::string utc_timestamp(double seconds) {
  // Years of more than five digits are nobody's.
  const auto time = static_cast<std::time_t>(std::clamp(seconds, 0.0, 1e12));
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace trireme
