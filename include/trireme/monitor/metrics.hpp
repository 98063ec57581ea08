// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace trireme::monitor {

class AppendFile;

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
  /// Returns the row as one line of JSON with its newline.
  std::string line() const;
  const std::string& kind() const { return kind_; }

 private:
  MetricsRow& add_json(const std::string& key, const std::string& json);
  std::string kind_, text_;
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

/// Reads the rows of metrics.jsonl and calls `take` for each; a missing file has none. Skips lines
/// that are not a JSON object, or longer than 1 MiB, and an incomplete last line. Returns "", or
/// how many lines were skipped and why the first was; the incomplete last line does not count.
/// Throws InputError if the path is a link or not a file, Failure if the disk fails.
std::string read_metrics(const std::string& path,
                         const std::function<void(const nlohmann::ordered_json&)>& take);

}  // namespace trireme::monitor
