#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace trireme::monitor {

class AppendFile;

/// One row of metrics.jsonl: keys in order. A number that is not finite is written as null.
class MetricsRow {
 public:
  explicit MetricsRow(std::string kind);
  MetricsRow& add(const std::string& key, double value);
  MetricsRow& add(const std::string& key, std::int64_t value);
  MetricsRow& add(const std::string& key, bool value);
  MetricsRow& add(const std::string& key, const std::string& value);
  MetricsRow& add(const std::string& key,
                  const char* value);  // else a literal would be taken for a bool
  /// One line of JSON with its newline.
  std::string line() const;
  const std::string& kind() const { return kind_; }

 private:
  MetricsRow& add_json(const std::string& key, const std::string& json);
  std::string kind_, text_;
};

/// metrics.jsonl of a run: only ever appended, a row with one write. Opened by world rank 0 only; a
/// default-made one writes nothing.
class Metrics {
 public:
  Metrics();
  /// A torn last line is cut. Throws Failure.
  explicit Metrics(const std::string& path);
  ~Metrics();
  Metrics(Metrics&&) noexcept;
  Metrics& operator=(Metrics&&) noexcept;
  /// A row that the disk does not take, since it is full or fails, is kept, and written before the
  /// next one. Throws Failure where there are too many of them.
  void write(const MetricsRow& row);
  /// Tries once more to write what is kept.
  void retry();
  /// Why rows are kept back; empty where all are in the file.
  std::string write_error() const;

 private:
  std::unique_ptr<AppendFile> file_;
};

}  // namespace trireme::monitor
