// SPDX-License-Identifier: Apache-2.0
//
// The text form of the table of algorithms (algorithms.txt).
//
// The first line names the format. The others have a checksum, a problem and an algorithm, with
// tabs between them. train/run/algorithm_file.cpp reads it before the first step and writes it with
// checkpoints.

#include "trireme/ops/algorithm_table.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/expect.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::ops {
namespace {

constexpr std::string_view first_line = "trireme-algorithms 1";

/// Returns the checksum of a line without its checksum: a 64-bit hash as 16 hexadecimal digits.
std::string checksum_of(std::string_view line) {
  return fmt::format("{:016x}", random_key(0, line));
}

/// Returns whether the text may be a key or a value: not empty, no control characters.
[[maybe_unused]] bool is_name(std::string_view text) {
  return !text.empty() && std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

struct Line {
  std::string problem, algorithm;
};

/// Returns a line's problem and algorithm; none if it is damaged.
std::optional<Line> parse_line(std::string_view line) {
  const std::size_t first = line.find('\t'),
                    second = first == std::string_view::npos ? first : line.find('\t', first + 1);
  if (second == std::string_view::npos ||
      checksum_of(line.substr(first + 1)) != line.substr(0, first))
    return std::nullopt;
  return Line{std::string(line.substr(first + 1, second - first - 1)),
              std::string(line.substr(second + 1))};
}

/// Calls add(number, line) for each line but the first. A last line without its end is damaged.
template <class Add>
void read_lines(std::string_view text, const Add& add) {
  for (int line_number = 1; line_number == 1 || !text.empty(); ++line_number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const bool truncated = end == std::string_view::npos;
    text.remove_prefix(truncated ? text.size() : end + 1);
    if (line_number > 1)
      add(line_number, truncated ? std::nullopt : parse_line(line));
    else
      validate(line == first_line && !truncated,
               "line 1: not a list of algorithms; the first line must be \"{}\"", first_line);
  }
}

bool is_own_kernel(std::string_view algorithm) {
  return algorithm.starts_with(AlgorithmTable::own_kernel);
}

}  // namespace

AlgorithmTable AlgorithmTable::parse(std::string_view text) {
  AlgorithmTable found;
  read_lines(text, [&](int line_number, std::optional<Line> line) {
    validate(line.has_value(), "line {}: damaged", line_number);
    found.set(line->problem, line->algorithm);
  });
  return found;
}

AlgorithmTable AlgorithmTable::parse_undamaged(std::string_view text) {
  AlgorithmTable found;
  read_lines(text, [&](int, std::optional<Line> line) {
    if (line) found.set(line->problem, line->algorithm);
  });
  return found;
}

std::string AlgorithmTable::to_text() const {
  std::string to_text = fmt::format("{}\n", first_line);
  for (const auto& [problem, algorithm] : entries_) {
    const std::string line = fmt::format("{}\t{}", problem, algorithm);
    to_text += fmt::format("{}\t{}\n", checksum_of(line), line);
  }
  return to_text;
}

const std::string* AlgorithmTable::find(const std::string& problem) const {
  const auto place = entries_.find(problem);
  return place == entries_.end() ? nullptr : &place->second;
}

std::vector<AlgorithmTable::OwnKernel> AlgorithmTable::own_kernels() const {
  constexpr std::string_view separator = ": ";
  std::vector<OwnKernel> found;
  for (const auto& [problem, algorithm] : entries_) {
    if (!is_own_kernel(algorithm)) continue;
    std::string reason = algorithm.substr(std::string_view(own_kernel).size());
    if (reason.starts_with(separator)) reason.erase(0, separator.size());
    if (reason.empty()) reason = "the library has no algorithm";
    found.push_back({problem, std::move(reason)});
  }
  return found;
}

AlgorithmTable AlgorithmTable::without_own_kernels() const {
  AlgorithmTable others = *this;
  std::erase_if(others.entries_, [](const auto& entry) { return is_own_kernel(entry.second); });
  return others;
}

void AlgorithmTable::set(const std::string& problem, const std::string& algorithm) {
  TRIREME_EXPECT(is_name(problem) && is_name(algorithm));
  entries_[problem] = algorithm;
}

void AlgorithmTable::add_missing(const AlgorithmTable& others) {
  entries_.insert(others.entries_.begin(), others.entries_.end());
}

}  // namespace trireme::ops
