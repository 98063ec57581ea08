// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace trireme::monitor {

class AppendFile;
class LineReader;

/// One row of metrics.jsonl. Keys keep their order. Numbers that are not finite are written as
/// null. The keys are documented in docs/reference/metrics.md.
class MetricsRow {
 public:
  explicit MetricsRow(std::string kind);
  MetricsRow& add(const std::string& key, double value);
  MetricsRow& add(const std::string& key, std::int64_t value);
  MetricsRow& add(const std::string& key, bool value);
  MetricsRow& add(const std::string& key, const std::string& value);
  // Without this overload a string literal would convert to bool.
  MetricsRow& add(const std::string& key, const char* value);
  MetricsRow& add(const std::string& key, const std::vector<double>& values);
  /// Returns the row as one line of JSON with its newline.
  std::string line() const;
  const std::string& kind() const { return kind_; }
  /// Returns a number that was added, finite or not; none if there is none of this key.
  std::optional<double> number(std::string_view key) const;
  /// Returns a text that was added; empty if there is none of this key.
  std::string text(std::string_view key) const;

 private:
  MetricsRow& add_json(const std::string& key, const std::string& json);
  std::string kind_, text_;
  std::vector<std::pair<std::string, double>> numbers_;
  std::vector<std::pair<std::string, std::string>> texts_;
};

/// The file metrics.jsonl of a run. It only grows, by one write for each row. World rank 0 opens
/// it; a default-constructed object writes nothing.
class Metrics {
 public:
  Metrics();
  /// Opens the file and removes an incomplete last line. Throws InputError if the path is a link or
  /// not a file, Failure for every other error.
  explicit Metrics(const std::string& path);
  ~Metrics();
  Metrics(Metrics&&) noexcept;
  Metrics& operator=(Metrics&&) noexcept;
  /// Appends a row. If the disk is full or fails, the row is kept and written before the next one.
  /// Throws Failure if more than 4 MiB are kept.
  void write(const MetricsRow& row);
  /// Tries again to write the rows that are kept. Throws Failure as write() does.
  void retry();
  /// Opens the file anew if it was removed or replaced, and returns whether it was. Throws Failure.
  bool reopen_if_removed();
  /// Returns why rows are kept; empty if all rows are in the file.
  std::string write_error() const;

 private:
  std::unique_ptr<AppendFile> file_;
};

/// Reads members of the rows of metrics.jsonl, without a document for a row of this program. Skips
/// lines that are not a JSON object, or longer than 1 MiB, and an incomplete last line.
class MetricsReader {
 public:
  /// Opens the file; a missing one has no rows. `keys`: the members that are read. Throws
  /// InputError if the path is a link or not a file.
  MetricsReader(const std::string& path, std::vector<std::string> keys);
  ~MetricsReader();
  /// Reads the next row. Returns false after the last one; a later call reads what was appended
  /// since. Throws Failure if the disk fails.
  bool next();
  /// Returns a member of the row, one of `keys`; null if it is missing.
  const nlohmann::ordered_json& operator[](std::string_view key) const;
  /// Returns a member of the row as a number; none if it is not one, or beyond 1e15: a stranger's,
  /// which could overflow in sums and integers.
  std::optional<double> number(std::string_view key) const;
  /// Returns the line of the row, without its newline.
  const std::string& line() const { return line_; }
  /// Returns "", or how many lines were skipped so far and why the first was; the incomplete last
  /// line does not count.
  std::string skipped() const;

 private:
  std::vector<std::string> keys_;
  std::vector<nlohmann::ordered_json> values_;  ///< of the row, as keys_
  std::unique_ptr<LineReader> lines_;
  std::string line_, first_skipped_;
  std::int64_t number_ = 0, skipped_ = 0;  ///< lines
};

}  // namespace trireme::monitor
