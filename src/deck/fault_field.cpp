// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes debug.fault, the list of faults that tests inject into a run.
//
// Syntax: faults separated by ";", each `kind [seconds] rank R step S[..S] [phase P]`, as in
// "kill rank 2 step 17 phase checkpoint-write; sleep 0.5 rank 0 step 3..9".
// faults() is the field that tables.cpp declares; everything else is local to this file.
#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "deck_fields.hpp"

namespace trireme::deck {

namespace {

using Kind = Fault::Kind;

constexpr std::array<std::pair<const char*, Kind>, 5> kinds = {{{"kill", Kind::kill},
                                                                {"stop", Kind::stop},
                                                                {"sleep", Kind::sleep},
                                                                {"nan", Kind::nan},
                                                                {"flip", Kind::flip}}};
constexpr const char* syntax_message =
    "must be as \"kill rank 2 step 17 phase checkpoint-write\" (kill, stop, sleep SECONDS, nan, "
    "flip; a step or a range as 3..9)";

/// Parses the whole text as one number. Returns false if anything else is in it.
template <class T>
bool parse_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

/// Parses a step "17" or a range of steps "3..9", counted from 1.
bool parse_step_range(std::string_view text, std::int64_t& first, std::int64_t& last) {
  const std::size_t dots = text.find("..");
  if (!parse_number(text.substr(0, dots), first)) return false;
  last = first;
  if (dots != std::string_view::npos && !parse_number(text.substr(dots + 2), last)) return false;
  return 1 <= first && first <= last;
}

/// Parses one fault. Returns an error message, or an empty string.
std::string read_fault(const std::string& text, Fault& fault) {
  // 1. The kind, and the seconds of a sleep.
  std::istringstream stream(text);
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& known) {
    return !words.empty() && words.front() == known.first;
  });
  if (kind == kinds.end()) return fmt::format("{}: {}", quoted(text), syntax_message);
  fault.kind = kind->second;
  std::size_t at = 1;
  if (fault.kind == Kind::sleep) {
    if (at == words.size() || !parse_number(words[at++], fault.seconds) || fault.seconds <= 0)
      return fmt::format("{}: sleep needs a number of seconds, as in sleep 0.5", quoted(text));
  }
  // 2. Pairs of a name and a value, in any order.
  bool rank = false, step = false;
  for (; at + 1 < words.size(); at += 2) {
    const std::string &name = words[at], &value = words[at + 1];
    bool right = true;
    if (name == "rank")
      right = rank = parse_number(value, fault.rank) && fault.rank >= 0;
    else if (name == "step")
      right = step = parse_step_range(value, fault.first, fault.last);
    else if (name == "phase") {
      right = std::find(std::begin(fault_phases), std::end(fault_phases), value) !=
              std::end(fault_phases);
      if (!right)
        return fmt::format("{}: unknown phase {}; phases: {}", quoted(text), value,
                           fmt::join(fault_phases, ", "));
      fault.phase = value;
    } else
      right = false;
    if (!right) return fmt::format("{}: {}", quoted(text), syntax_message);
  }
  // 3. Rules over several words.
  const bool touches = fault.kind == Kind::flip || fault.kind == Kind::nan;
  if (touches && fault.phase.starts_with("checkpoint"))
    return fmt::format(
        "{}: {} changes the tensors of a step, and in phase {} another thread may be reading them; "
        "use "
        "phase step",
        quoted(text), words[0], fault.phase);
  if (at != words.size() || !rank || !step)
    return fmt::format("{}: {}", quoted(text), syntax_message);
  return "";
}

/// Returns the fault in the syntax that read_fault() accepts.
std::string format_fault(const Fault& fault) {
  const auto* kind = std::find_if(kinds.begin(), kinds.end(),
                                  [&](const auto& known) { return known.second == fault.kind; });
  std::string text = kind->first;
  if (fault.kind == Kind::sleep) text += fmt::format(" {}", fault.seconds);
  text += fmt::format(" rank {} step {}", fault.rank, fault.first);
  if (fault.last != fault.first) text += fmt::format("..{}", fault.last);
  return text + " phase " + fault.phase;
}

}  // namespace

Field faults(std::vector<Fault>& value) {
  const auto read = [&value](const Value& given) -> std::string {
    const auto string = given.string();
    if (!string) return given.wrong_type("faults in quotes, as in \"kill rank 2 step 17\"");
    std::vector<Fault> read_value;
    std::istringstream stream(*string);
    for (std::string one; std::getline(stream, one, ';');) {
      Fault fault;
      if (std::string wrong = read_fault(one, fault); !wrong.empty()) return wrong;
      read_value.push_back(fault);
    }
    value = std::move(read_value);
    return "";
  };
  return {read,
          [&value] {
            std::vector<std::string> given;
            for (const Fault& fault : value) given.push_back(format_fault(fault));
            return given.empty() ? std::string()
                                 : quoted(fmt::format("{}", fmt::join(given, "; ")));
          },
          "string", "kind [seconds] rank R step S[..S] [phase P]; several separated by \";\""};
}

}  // namespace trireme::deck
