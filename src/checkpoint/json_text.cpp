// Parses untrusted JSON within limits of depth and of the number of values.
#include "json_text.hpp"

#include <set>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::checkpoint {

nlohmann::json parse_object(const std::string& text, const std::string& place,
                            const JsonLimits& limits) {
  using Json = nlohmann::json;
  std::vector<std::set<std::string>> open;
  std::string duplicate_name;
  std::size_t values = 0;
  const auto check_event = [&](int depth, Json::parse_event_t event, Json& value) {
    validate(++values <= limits.max_values, "{} holds more than {} values", place,
             limits.max_values);
    validate(depth < limits.max_depth, "{} is nested more than {} levels deep", place,
             limits.max_depth);
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second)
      duplicate_name = value.get<std::string>();
    return true;
  };
  try {
    Json object = Json::parse(text, check_event);
    validate(object.is_object(), "{} is not a JSON object", place);
    validate(duplicate_name.empty(), "{}: {} occurs twice", place, printable(duplicate_name));
    return object;
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{} is not JSON: {}", place, printable(error.what())));
  }
}

}  // namespace trireme::checkpoint
