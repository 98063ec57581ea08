// SPDX-License-Identifier: Apache-2.0
//
// Reads metrics.jsonl back: for `trireme inspect`, and for a start that looks for evaluations.
//
// Every user who may write in the run folder can change the file, so its lines are bounded in
// bytes, depth and values. A line that cannot be read is skipped.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/base/plain_file.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/json.hpp"
#include "trireme/monitor/metrics.hpp"

namespace trireme::monitor {
namespace {

constexpr std::int64_t block_bytes = std::int64_t{256} << 10;
// A crash leaves one such line; a file with many more is not that of a run.
constexpr std::int64_t max_skipped_lines = 100'000;
constexpr io::JsonLimits line_limits{.bytes = std::int64_t{1} << 20, .depth = 8};

/// Reads a file line by line. Keeps one line in memory, and of a long one only its length.
class LineReader {
 public:
  explicit LineReader(const std::string& path)
      : file_(path, io::File::Mode::read_own), block_(static_cast<std::size_t>(block_bytes)) {}

  /// Reads the next complete line without its newline. Returns false at the end of the file.
  bool next(std::string& line, bool& is_too_long) {
    line.clear();
    is_too_long = false;
    for (;;) {
      if (position_ == end_ && !fill(is_too_long)) return false;
      const char* const begin = block_.data() + position_;
      const auto* const feed = static_cast<const char*>(
          std::memchr(begin, '\n', static_cast<std::size_t>(end_ - position_)));
      const std::int64_t bytes = feed == nullptr ? end_ - position_ : feed - begin;
      is_too_long = is_too_long || std::ssize(line) + bytes > line_limits.bytes;
      if (!is_too_long) line.append(begin, static_cast<std::size_t>(bytes));
      position_ += bytes + (feed == nullptr ? 0 : 1);
      if (feed != nullptr) return true;
    }
  }

 private:
  /// Reads the next block. Returns false at the end of the file. `only_newline`: nothing but the
  /// next newline is wanted, so holes of a sparse file are passed over: gigabytes of them cost
  /// nothing.
  bool fill(bool only_newline) {
    if (only_newline) {
      const off_t data = ::lseek(file_.descriptor(), static_cast<off_t>(offset_), SEEK_DATA);
      if (data < 0 && errno == ENXIO) return false;
      offset_ = std::max<std::int64_t>(offset_, data);
    }
    const std::int64_t bytes = std::min(block_bytes, file_.size() - offset_);
    if (bytes <= 0) return false;
    file_.read_at(offset_, block_.data(), bytes);
    offset_ += bytes;
    position_ = 0;
    end_ = bytes;
    return true;
  }

  io::File file_;
  std::vector<char> block_;
  std::int64_t offset_ = 0, position_ = 0, end_ = 0;
};

/// Returns the row in a line. Throws InputError.
nlohmann::ordered_json row_of(const std::string& line, bool is_too_long, std::int64_t number) {
  const std::string where = fmt::format("line {}", number);
  validate(!is_too_long, "{}: is longer than {}", where, format_bytes(line_limits.bytes));
  auto row = io::parse_json<nlohmann::ordered_json>(line, where, line_limits);
  validate(row.is_object(), "{}: is not a JSON object", where);
  return row;
}

}  // namespace

std::string read_metrics(const std::string& path,
                         const std::function<void(const nlohmann::ordered_json&)>& take) {
  if (!is_there(path)) return "";
  LineReader lines(path);
  std::string line, first;
  bool is_too_long = false;
  std::int64_t number = 0, skipped = 0;
  while (lines.next(line, is_too_long)) {
    ++number;
    if (line.empty() && !is_too_long) continue;
    if (skipped == max_skipped_lines) {
      first += "; lines after these are not read";
      break;
    }
    try {
      take(row_of(line, is_too_long, number));
    } catch (const InputError& error) {
      if (++skipped == 1) first = error.what();
    }
  }
  if (skipped == 0) return "";
  return fmt::format("{} cannot be read; {}", counted(skipped, "line", "lines"), first);
}

}  // namespace trireme::monitor
