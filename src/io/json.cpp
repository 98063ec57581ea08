// SPDX-License-Identifier: Apache-2.0
#include "trireme/io/json.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"

namespace trireme::io {

std::string json_problem(std::string_view text, std::size_t position, const char* of_what) {
  // 1. The word around the position.
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+';
  };
  const std::size_t at = std::min(position - std::min<std::size_t>(position, 1), text.size());
  std::size_t begin = at, end = at;
  while (begin > 0 && is_letter(text[begin - 1])) --begin;
  while (end < text.size() && is_letter(text[end])) ++end;
  const std::string_view word = text.substr(begin, end - begin);
  std::string letters;
  for (const char c : word)
    if (c != '-' && c != '+') letters += static_cast<char>(c | 0x20);
  // 2. The place.
  const auto line =
      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
  const std::string where = fmt::format("at byte {}{}{}", position, of_what,
                                        line > 1 ? fmt::format(" in line {}", line) : "");
  if (letters == "nan" || letters == "inf" || letters == "infinity")
    return fmt::format("{} {} is no value of JSON; write null, or leave the member out", word,
                       where);
  return "it is wrong " + where;
}

template <class Json>
Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  validate(std::ssize(text) <= limits.bytes, "{}: has {} bytes, more than the limit of {}", what,
           text.size(), limits.bytes);
  std::vector<std::set<std::string>> open;  // the members so far of the objects around a value
  std::int64_t values = 0;
  const auto check_event = [&](int depth, typename Json::parse_event_t event, Json& value) {
    using Event = typename Json::parse_event_t;
    validate(++values <= limits.values, "{}: holds more than {} values", what, limits.values);
    validate(depth < limits.depth, "{}: is nested more than {} levels deep", what, limits.depth);
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event != Event::key) return true;
    const std::string& name = value.template get_ref<const std::string&>();
    validate(open.back().insert(name).second, "{}: the member {} occurs twice", what,
             printable(name, 60));
    validate(std::ssize(open.back()) <= limits.members, "{}: an object has more than {} members",
             what, limits.members);
    return true;
  };
  try {
    return Json::parse(text, check_event);
  } catch (const typename Json::parse_error& error) {
    throw NotJson(fmt::format("{}: is not JSON: {}", what, json_problem(text, error.byte)));
  } catch (const typename Json::exception& error) {
    if (error.id == json_number_out_of_range)
      throw NotJson(fmt::format("{}: has a number out of range (that of a double)", what));
    throw NotJson(fmt::format("{}: is not JSON: {}", what, printable(error.what(), 200)));
  }
}

template <class Json>
Json parse_json_object(std::string_view text, const std::string& what, const JsonLimits& limits) {
  Json object = parse_json<Json>(text, what, limits);
  validate(object.is_object(), "{}: is not a JSON object", what);
  return object;
}

template <class Json>
Json read_json_file(const std::string& path, const JsonLimits& limits) {
  return parse_json<Json>(read_own_text_file(path, limits.bytes), path, limits);
}

template nlohmann::json parse_json(std::string_view, const std::string&, const JsonLimits&);
template nlohmann::ordered_json parse_json(std::string_view, const std::string&, const JsonLimits&);
template nlohmann::json parse_json_object(std::string_view, const std::string&, const JsonLimits&);
template nlohmann::json read_json_file(const std::string&, const JsonLimits&);
template nlohmann::ordered_json read_json_file(const std::string&, const JsonLimits&);

}  // namespace trireme::io
