#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

namespace trireme::checkpoint {

/// What untrusted JSON may hold at most.
struct JsonLimits {
  std::size_t max_values;  ///< objects, lists, names and other values
  int max_depth;           ///< levels of nesting, the outermost object included
};

/// Parses an object of JSON. Throws InputError that begins with `place` ("file: the header") for
/// other values and other text, names that occur twice in an object (the parser would silently keep
/// one), deep nesting and too many values.
nlohmann::json parse_object(const std::string& text, const std::string& place,
                            const JsonLimits& limits);

}  // namespace trireme::checkpoint
