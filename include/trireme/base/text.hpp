// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Returns the smallest number of insertions, deletions, substitutions and swaps of neighbors that
/// turn `a` into `b` (restricted Damerau-Levenshtein distance).
int edit_distance(std::string_view a, std::string_view b);

/// Returns the choice that `word` most likely misspells, for "did you mean" messages. Returns an
/// empty string if no choice is close enough.
std::string nearest(std::string_view word, const std::vector<std::string>& choices);

/// Returns the whole number that is the whole text; none if it is anything else.
std::optional<std::int64_t> parse_integer(std::string_view text);

/// Removes the first line from `text` and returns it without its end (LF or CR LF).
std::string_view take_line(std::string_view& text);

/// Returns the multiples of `part` (> 0) below and above `value` as "384 or 512". Returns only
/// "512" if the lower one is 0.
std::string nearest_multiples(std::int64_t value, std::int64_t part);
/// Returns the greatest divisor of `whole` (> 0) that is at most `limit`, and at least 1.
std::int64_t largest_divisor(std::int64_t whole, std::int64_t limit);
/// Returns the divisors of `whole` (> 0) next to `value` (> 0) on both sides: "3 or 6".
std::string nearest_divisors(std::int64_t value, std::int64_t whole);

/// Formats untrusted text for one line. Escapes control characters, marks of the direction of
/// writing and bytes that are not UTF-8 as \x0A, and cuts after `max_bytes` bytes with "...".
std::string printable(std::string_view text, std::size_t max_bytes = 200);

/// Escapes the same characters other than line feeds and tabs as \x0A: for whole messages, which
/// may contain names of files.
std::string printable_lines(std::string_view text);

/// Returns the text between quotation marks, as a cell of a CSV file (RFC 4180).
std::string csv_quoted(std::string_view text);
/// Returns a cell of a CSV file: quoted if the text needs it.
std::string csv_cell(std::string_view text);

/// Returns bytes in base64 (RFC 4648), with padding.
std::string base64(std::string_view bytes);

/// Returns "1 step" or "2 steps".
std::string counted(std::int64_t count, const char* one, const char* many);
/// Returns the words as "a, b or c".
std::string join_with_or(const std::vector<std::string>& words);

/// Returns "1.5 GiB" or "812 bytes".
std::string format_bytes(double bytes);
std::string format_bytes(std::integral auto bytes) {
  return format_bytes(static_cast<double>(bytes));
}

/// Returns "12.3 GFLOP", with prefixes from K to E.
std::string format_flops(double flops);

/// Returns "512 J", "1.23 MJ" or, from 1 kWh on, "12.3 kWh" and "1.23 MWh".
std::string format_energy(double joules);

/// Returns "12.3 ms" or "1.23 s", and from 100 s on the form of format_seconds().
std::string format_short_seconds(double seconds);

/// Returns "2:05" (minutes), "1:02:05" (hours) or "3 d 4 h".
std::string format_seconds(double seconds);

}  // namespace trireme
