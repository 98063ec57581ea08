// SPDX-License-Identifier: Apache-2.0
//
// Reads texts from JSON Lines: an object a line, of which one member is taken.
//
// The parser reports events (nlohmann's SAX interface). MemberFinder keeps the value of the wanted
// member of the outermost object, and the names of the others for the message about a missing one.
#include "jsonl.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "trireme/base/text.hpp"
#include "trireme/io/json.hpp"

namespace trireme::data {
namespace {

constexpr std::size_t block_bytes = 256 << 10;
// The whole line is in memory. Texts of training sets have kilobytes, books megabytes.
constexpr std::size_t max_line_bytes = 64 << 20;
constexpr std::size_t max_listed_members = 8;

/// Looks for a member in the events of a parser.
class MemberFinder {
 public:
  MemberFinder(const std::string& member, std::string_view stored, JsonLine& line)
      : member_(member), stored_(stored), line_(line) {}

  bool null() { return other("null"); }
  bool boolean(bool) { return other("a truth value"); }
  bool number_integer(std::int64_t) { return other("a number"); }
  bool number_unsigned(std::uint64_t) { return other("a number"); }
  bool number_float(double, const std::string&) { return other("a number"); }
  bool binary(nlohmann::json::binary_t&) { return other("bytes"); }
  bool string(std::string& value) {
    if (depth_ == 0) outermost_ = "a string";
    if (!is_wanted_) return true;
    is_wanted_ = false;
    kind_.clear();
    line_.text = std::move(value);
    is_found_ = true;
    return true;
  }
  bool start_object(std::size_t) { return open("an object"); }
  bool start_array(std::size_t) { return open("a list"); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    if (depth_ != 1) return true;
    is_wanted_ = name == member_;
    if (!is_wanted_ && members_.size() <= max_listed_members)
      members_.push_back(printable(name, 40));
    return true;
  }
  bool parse_error(std::size_t position, const std::string& word,
                   const nlohmann::json::exception& error) {
    line_.problem =
        error.id == io::json_number_out_of_range
            ? fmt::format("has the number {} at byte {}, which is out of range (a double)",
                          printable(word, 40), position)
            : fmt::format("is not JSON: {}", io::json_problem(stored_, position, " of the line"));
    return false;
  }

  /// Sets the problem of a line that is JSON, if it has one.
  void finish() {
    if (outermost_ != "an object") {
      line_.problem = fmt::format("is {}; a line must be an object, as in {{\"{}\": \"...\"}}",
                                  outermost_, printable(member_));
    } else if (!kind_.empty()) {
      line_.problem =
          fmt::format("its member \"{}\" is {}; a text is a string", printable(member_), kind_);
    } else if (!is_found_) {
      const bool more = members_.size() > max_listed_members;
      if (more) members_.pop_back();
      line_.problem = fmt::format("has no member \"{}\"; its members are: {}{}", printable(member_),
                                  members_.empty() ? "none" : "", fmt::join(members_, ", ")) +
                      (more ? ", ..." : "");
    }
  }

 private:
  bool other(const char* kind) {
    if (depth_ == 0) outermost_ = kind;
    if (std::exchange(is_wanted_, false)) kind_ = kind;
    return true;
  }
  bool open(const char* kind) {
    other(kind);
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  const std::string& member_;
  std::string_view stored_;
  JsonLine& line_;
  std::int64_t depth_ = 0;
  std::string outermost_;  ///< kind of the whole line
  bool is_wanted_ = false, is_found_ = false;
  std::string kind_;  ///< of the wanted member, if it is no string
  std::vector<std::string> members_;
};

}  // namespace

JsonLineReader::JsonLineReader(const std::string& path, std::string member)
    : file_(path), member_(std::move(member)), block_(block_bytes) {}

bool JsonLineReader::next(JsonLine& line) {
  std::string stored;
  bool is_too_long = false;
  do {
    if (!read_line(stored, is_too_long)) return false;
    ++number_;
  } while (stored.find_first_not_of(" \t\r") == std::string::npos && !is_too_long);
  line = {.number = number_, .text = {}, .problem = {}};
  if (is_too_long) {
    line.problem = fmt::format("is longer than {}; cut its text", format_bytes(max_line_bytes));
    return true;
  }
  MemberFinder finder(member_, stored, line);
  if (nlohmann::json::sax_parse(stored, &finder)) finder.finish();
  return true;
}

/// Reads to the next line feed. Of a line that is too long only the length is kept. Returns false
/// at the end of the file.
bool JsonLineReader::read_line(std::string& line, bool& is_too_long) {
  line.clear();
  is_too_long = false;
  for (bool any = false;; any = true) {
    if (position_ == end_) {
      position_ = 0;
      end_ = file_.read(block_);
      if (end_ == 0) return any;
    }
    const auto* const begin = reinterpret_cast<const char*>(block_.data()) + position_;
    const auto* const feed = static_cast<const char*>(std::memchr(begin, '\n', end_ - position_));
    const std::size_t bytes =
        feed == nullptr ? end_ - position_ : static_cast<std::size_t>(feed - begin);
    is_too_long = is_too_long || line.size() + bytes > max_line_bytes;
    if (!is_too_long) line.append(begin, bytes);
    position_ += bytes + (feed == nullptr ? 0 : 1);
    if (feed != nullptr) return true;
  }
}

}  // namespace trireme::data
