// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/monitor/metrics.hpp"

namespace trireme::monitor {

/// Keeps the latest figures of a run in a file for Prometheus, in its text format 0.0.4:
/// node_exporter reads such files (--collector.textfile.directory).
///
/// The file is replaced atomically, at most once a second. It stays after the end, with trireme_up
/// 0. A file that cannot be written never stops a run. World rank 0 creates one for a start.
class Prometheus {
 public:
  /// Writes the file. `run`, `job`: labels of every sample; an empty job is left out.
  Prometheus(std::string path, const std::string& run, const std::string& job);

  /// Takes the figures of a row of metrics.jsonl, and writes the file if it is due at this time.
  void add(const MetricsRow& row, double now = monotonic_seconds());
  /// Writes the file with trireme_up 0, for the last time.
  void end();
  /// Returns why the last write failed; empty if it did not.
  const std::string& trouble() const { return trouble_; }

  /// Throws InputError unless a file can be made at this path: its folder exists and may be
  /// written, and a file of this name is one of this class.
  static void validate(const std::string& path);

 private:
  void set(std::size_t metric, const std::string& label, double value);
  void write(bool is_up);

  std::string path_, temporary_, labels_, trouble_;
  /// By metric, then label: its latest value.
  std::vector<std::map<std::string, double>> values_;
  std::vector<std::optional<double>> last_;  ///< by metric: the value of the latest row
  double written_at_ = 0;
};

}  // namespace trireme::monitor
