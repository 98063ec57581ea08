// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trireme/base/error.hpp"

namespace trireme::io {

/// Limits of a JSON text that others may have written. The memory and the time of reading it are
/// bounded by them.
struct JsonLimits {
  std::int64_t bytes = std::int64_t{1} << 20;
  int depth = 16;  ///< lists and objects within each other
  std::int64_t values = 100'000;
  std::int64_t members = 256;  ///< of one object
};

/// The error of a text that exceeds no limit and is not JSON, such as a file cut short, or has a
/// number beyond a double.
class NotJson : public InputError {
 public:
  using InputError::InputError;
};

/// The number of the error with which the parser reports a number beyond a double, as 1e999.
inline constexpr int json_number_out_of_range = 406;

/// Returns why a text is not JSON that is wrong at byte `position`, counted from 1: as "it is wrong
/// at byte 7", with the line of a text of several, or the word NaN or Infinity that is there.
/// `of_what` follows the number of the byte.
std::string json_problem(std::string_view text, std::size_t position, const char* of_what = "");

/// Parses a text. `what` names it in messages. Throws NotJson if it is not JSON, InputError if it
/// exceeds a limit or if a member of an object occurs twice. `Json`: nlohmann::json or
/// nlohmann::ordered_json.
template <class Json>
Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits);

/// Parses a text that must be one object. Throws the errors of parse_json(), and InputError for
/// another value.
template <class Json>
Json parse_json_object(std::string_view text, const std::string& what, const JsonLimits& limits);

/// Reads members of a text that must be one object: sets values[i] to the member keys[i], null if
/// it is missing. Builds no document for a flat object of numbers, words and ASCII texts without
/// escapes, as a row of metrics. Leaves every other text to parse_json_object(), whose errors it
/// throws.
void read_json_members(std::string_view text, const std::string& what, const JsonLimits& limits,
                       std::span<const std::string> keys,
                       std::vector<nlohmann::ordered_json>& values);

/// Reads and parses a regular file; a link is refused, and nothing is waited for. Throws the errors
/// of parse_json() and InputError if the file cannot be opened.
template <class Json>
Json read_json_file(const std::string& path, const JsonLimits& limits);

}  // namespace trireme::io
