// SPDX-License-Identifier: Apache-2.0
//
// Reads metrics.jsonl back: for `trireme inspect`, and for a start that looks for evaluations.
//
// Every user who may write in the run folder can change the file, so its lines are bounded in
// bytes, depth and values. A line that cannot be read is skipped.

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>
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

}  // namespace

/// Reads a file line by line. Keeps one line in memory, and of a long one only its length.
class LineReader {
 public:
  explicit LineReader(const std::string& path)
      : file_(path, io::File::Mode::read_own), block_(static_cast<std::size_t>(block_bytes)) {}

  /// Reads the next complete line without its newline. Returns false at the end of the file; a
  /// later call goes on from there.
  bool next(std::string& line, bool& is_too_long) {
    for (;;) {
      if (position_ == end_ && !fill(is_too_long_)) {
        // The line is read anew once it is complete. A restart of the run may have cut it off.
        offset_ -= std::ssize(std::exchange(line_, ""));
        return false;
      }
      const char* const begin = block_.data() + position_;
      const auto* const feed = static_cast<const char*>(
          std::memchr(begin, '\n', static_cast<std::size_t>(end_ - position_)));
      const std::int64_t bytes = feed == nullptr ? end_ - position_ : feed - begin;
      is_too_long_ = is_too_long_ || std::ssize(line_) + bytes > line_limits.bytes;
      if (is_too_long_)
        line_.clear();
      else
        line_.append(begin, static_cast<std::size_t>(bytes));
      position_ += bytes + (feed == nullptr ? 0 : 1);
      if (feed == nullptr) continue;
      std::swap(line, line_);
      line_.clear();
      is_too_long = std::exchange(is_too_long_, false);
      return true;
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
    if (file_.size() < offset_) offset_ = 0;  // another file in its place
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
  std::string line_;          ///< that has begun
  bool is_too_long_ = false;  ///< line_ was
  std::int64_t offset_ = 0, position_ = 0, end_ = 0;
};

MetricsReader::MetricsReader(const std::string& path, std::vector<std::string> keys)
    : keys_(std::move(keys)) {
  if (is_there(path)) lines_ = std::make_unique<LineReader>(path);
}

MetricsReader::~MetricsReader() = default;

bool MetricsReader::next() {
  bool is_too_long = false;
  while (lines_ && lines_->next(line_, is_too_long)) {
    ++number_;
    if (line_.empty() && !is_too_long) continue;
    if (skipped_ == max_skipped_lines) {
      first_skipped_ += "; lines after these are not read";
      lines_.reset();
      break;
    }
    try {
      const std::string where = fmt::format("line {}", number_);
      validate(!is_too_long, "{}: is longer than {}", where, format_bytes(line_limits.bytes));
      io::read_json_members(line_, where, line_limits, keys_, values_);
      return true;
    } catch (const InputError& error) {
      if (++skipped_ == 1) first_skipped_ = error.what();
    }
  }
  return false;
}

const nlohmann::ordered_json& MetricsReader::operator[](std::string_view key) const {
  const auto at = std::find(keys_.begin(), keys_.end(), key);
  TRIREME_EXPECT(at != keys_.end() && !values_.empty());
  return values_[static_cast<std::size_t>(at - keys_.begin())];
}

std::optional<double> MetricsReader::number(std::string_view key) const {
  const nlohmann::ordered_json& value = (*this)[key];
  constexpr double largest = 1e15;
  if (!value.is_number()) return std::nullopt;
  const auto found = value.get<double>();
  return std::abs(found) <= largest ? std::optional(found) : std::nullopt;
}

std::string MetricsReader::skipped() const {
  if (skipped_ == 0) return "";
  return fmt::format("{} cannot be read; {}", counted(skipped_, "line", "lines"), first_skipped_);
}

}  // namespace trireme::monitor
