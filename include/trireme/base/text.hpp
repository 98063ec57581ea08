#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Number of insertions, deletions, changes and swaps of neighbours that turn a into b
/// (Damerau-Levenshtein, restricted).
int edit_distance(std::string_view a, std::string_view b);

/// The choice nearest to `word`, or empty where none is near enough to be a misspelling.
std::string nearest(std::string_view word, const std::vector<std::string>& choices);

/// "384 or 512": the multiples of `part` (> 0) on both sides of `value`; "512" where the lower one
/// is 0.
std::string nearest_multiples(std::int64_t value, std::int64_t part);

/// A stranger's words as part of one line: control characters as \x0A, and at most `most` bytes,
/// the rest as "...".
std::string printable(std::string_view text, std::size_t max_bytes = 200);

/// "1.5 GiB", "812 bytes".
std::string format_bytes(double bytes);

/// "2:05", "1:02:05", "3 d 4 h".
std::string format_seconds(double seconds);

}  // namespace trireme
