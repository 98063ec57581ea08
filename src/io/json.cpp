// SPDX-License-Identifier: Apache-2.0
//
// Reads JSON that others may have written.
//
// parse_json() reads a text twice: JsonCheck compares it with the limits and finds the place of an
// error, then the library makes the values. Both take time in proportion to the text. Called for
// records, configurations, indices and the headers of safetensors files.
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

namespace {

/// Checks limits and repeated members of a text before its values are made.
///
/// A callback of Json::parse() could do the same, but costs the square of the number of objects in
/// one object: the library then looks for discarded members after each of them.
template <class Json>
class JsonCheck : public nlohmann::json_sax<Json> {
 public:
  JsonCheck(std::string_view text, const std::string& what, const JsonLimits& limits)
      : text_(text), what_(what), limits_(limits) {}

  bool null() override { return count(depth_); }
  bool boolean(bool) override { return count(depth_); }
  bool number_integer(typename Json::number_integer_t) override { return count(depth_); }
  bool number_unsigned(typename Json::number_unsigned_t) override { return count(depth_); }
  bool number_float(typename Json::number_float_t, const std::string&) override {
    return count(depth_);
  }
  bool string(std::string&) override { return count(depth_); }
  bool binary(typename Json::binary_t&) override { return count(depth_); }
  bool start_array(std::size_t) override { return count(depth_++); }
  bool end_array() override { return count(--depth_); }
  bool start_object(std::size_t) override {
    open_.emplace_back();
    return count(depth_++);
  }
  bool end_object() override {
    open_.pop_back();
    return count(--depth_);
  }
  bool key(std::string& name) override {
    count(depth_);
    validate(open_.back().insert(name).second, "{}: the member {} occurs twice", what_,
             printable(name, 60));
    validate(std::ssize(open_.back()) <= limits_.members, "{}: an object has more than {} members",
             what_, limits_.members);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    if (error.id == json_number_out_of_range)
      throw NotJson(fmt::format("{}: has a number out of range (that of a double)", what_));
    throw NotJson(fmt::format("{}: is not JSON: {}", what_, json_problem(text_, position)));
  }

 private:
  bool count(int depth) {
    validate(++values_ <= limits_.values, "{}: holds more than {} values", what_, limits_.values);
    validate(depth < limits_.depth, "{}: is nested more than {} levels deep", what_, limits_.depth);
    return true;
  }

  std::string_view text_;
  const std::string& what_;
  const JsonLimits& limits_;
  std::vector<std::set<std::string>> open_;  ///< members so far of the objects around a value
  std::int64_t values_ = 0;
  int depth_ = 0;
};

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  validate(std::ssize(text) <= limits.bytes, "{}: has {} bytes, more than the limit of {}", what,
           text.size(), limits.bytes);
  JsonCheck<Json> check(text, what, limits);
  Json::sax_parse(text, &check);
  return Json::parse(text);
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
