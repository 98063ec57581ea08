// SPDX-License-Identifier: Apache-2.0
//
// Reads JSON that others may have written.
//
// parse_json() reads a text twice: JsonCheck compares it with the limits and finds the place of an
// error, then the library makes the values. Both take time in proportion to the text. Called for
// records, configurations, indices and the headers of safetensors files.
//
// read_json_members() first tries PlainScan, which accepts only what parse_json() accepts too.
#include "trireme/io/json.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <system_error>
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

/// Scans a flat object of scalars without a document. Fails for everything unusual: other values,
/// escapes, bytes beyond ASCII, white space other than blanks, huge numbers, and every mistake.
class PlainScan {
 public:
  explicit PlainScan(std::string_view text) : rest_(text) {}

  /// Reads the text as read_json_members() does. Returns false, with any values, if it fails.
  bool object(const JsonLimits& limits, std::span<const std::string> keys,
              std::vector<nlohmann::ordered_json>& values) {
    std::array<std::string_view, 96> names;
    const auto max_members = std::min<std::int64_t>(
        {std::ssize(names), limits.members, limits.depth > 1 ? (limits.values - 2) / 2 : 0});
    auto end = names.begin();
    if (!take('{')) return false;
    do {
      std::string_view name, value;
      double number = 0;
      if (end - names.begin() >= max_members || !take('"') || !text(name) || !take(':'))
        return false;
      const bool is_text = take('"');
      if (is_text ? !text(value) : !word(value, number)) return false;
      if (std::find(names.begin(), end, name) != end) return false;
      *end++ = name;
      const auto key = std::find(keys.begin(), keys.end(), name);
      if (key == keys.end()) continue;
      nlohmann::ordered_json& kept = values[static_cast<std::size_t>(key - keys.begin())];
      kept = is_text ? nlohmann::ordered_json(value) : value_of(value, number);
    } while (take(','));
    if (!take('}')) return false;
    skip_blanks();
    return rest_.empty();
  }

 private:
  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }

  bool take(char wanted) {
    skip_blanks();
    if (!rest_.starts_with(wanted)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::string_view take_bytes(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  /// Takes a text and the quote after it.
  bool text(std::string_view& value) {
    std::size_t bytes = 0;
    for (; bytes < rest_.size() && rest_[bytes] != '"'; ++bytes)
      if (rest_[bytes] < ' ' || rest_[bytes] > '~' || rest_[bytes] == '\\') return false;
    value = take_bytes(bytes);
    return take('"');
  }

  /// Takes a number, true, false or null.
  bool word(std::string_view& value, double& number) {
    skip_blanks();
    for (const std::string_view name : {"true", "false", "null"})
      if (rest_.starts_with(name)) {
        value = take_bytes(name.size());
        return true;
      }
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc()) return false;
    value = take_bytes(static_cast<std::size_t>(end - rest_.data()));
    // JSON has neither 01 nor .5 nor 1. nor inf.
    const std::size_t first = value.starts_with('-') ? 1 : 0, point = value.find('.');
    const auto is_digit = [&](std::size_t at) {
      return at < value.size() && value[at] >= '0' && value[at] <= '9';
    };
    return is_digit(first) && !(value[first] == '0' && is_digit(first + 1)) &&
           (point == std::string_view::npos || is_digit(point + 1));
  }

  /// Makes the value of a word, as the library does: a whole number is one if it fits.
  static nlohmann::ordered_json value_of(std::string_view word, double number) {
    if (word == "null") return nullptr;
    if (word == "true" || word == "false") return word == "true";
    const char* const end = word.data() + word.size();
    const auto whole = [&](auto integer) -> nlohmann::ordered_json {
      const auto [last, error] = std::from_chars(word.data(), end, integer);
      return last == end && error == std::errc() ? nlohmann::ordered_json(integer) : nullptr;
    };
    nlohmann::ordered_json value =
        word.starts_with('-') ? whole(std::int64_t{}) : whole(std::uint64_t{});
    return value.is_null() ? nlohmann::ordered_json(number) : value;
  }

  std::string_view rest_;
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

void read_json_members(std::string_view text, const std::string& what, const JsonLimits& limits,
                       std::span<const std::string> keys,
                       std::vector<nlohmann::ordered_json>& values) {
  values.assign(keys.size(), nullptr);
  if (std::ssize(text) <= limits.bytes && PlainScan(text).object(limits, keys, values)) return;
  const auto object = parse_json_object<nlohmann::ordered_json>(text, what, limits);
  for (std::size_t i = 0; i < keys.size(); ++i)
    values[i] = object.value(keys[i], nlohmann::ordered_json());
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
