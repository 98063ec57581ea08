// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trireme/base/log.hpp"
#include "trireme/io/run_names.hpp"
#include "trireme/monitor/metrics.hpp"
#include "trireme/monitor/run_account.hpp"

namespace trireme::monitor {

/// The paths of the files in a run folder, their checks, and the readers of its records.
/// Libraries deck and checkpoint read the deck and the checkpoints.
class RunFolder {
 public:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  /// Returns the path of a name, as of io::run_names.
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::string checkpoints() const { return *this / io::run_names::checkpoints; }
  std::string environment() const { return *this / io::run_names::environment; }
  std::string exit_record() const { return *this / io::run_names::exit_record; }
  std::string log() const { return *this / io::run_names::log; }
  std::string metrics() const { return *this / io::run_names::metrics; }

  /// Returns whether a run has worked in the folder: it has checkpoints/ or metrics.jsonl.
  bool has_run() const;
  /// Throws InputError unless a run has worked in the folder.
  void check_is_run() const;

  /// Checks the names that a run uses, before anything is written. The folder and `checkpoints` may
  /// be links, other names may not: a link could lead to any file of this user. `uses_tensorboard`:
  /// the run writes event files. Throws InputError for a link, and for a file or folder in the
  /// place of the other.
  void check_names(bool uses_tensorboard) const;
  /// Renames records that are not regular files, such as pipes, to NAME.damaged with a warning:
  /// exit.json, environment.json, metrics.jsonl and others that no start needs. Throws the errors
  /// of io::rename_durably().
  void rename_other_kinds(Log& log) const;

  /// Returns a reader of metrics.jsonl for these members of its rows. Throws as MetricsReader does.
  MetricsReader read_metrics(std::vector<std::string> keys) const {
    return {metrics(), std::move(keys)};
  }
  /// Returns the array in environment.json, with one object for each start; an empty one if the
  /// file is missing. Throws InputError if it cannot be read.
  nlohmann::ordered_json read_environment() const;
  /// Returns the job of each start in environment.json, "slurm 4711"; "" outside of a job. Throws
  /// as read_environment() does.
  std::vector<std::string> read_jobs() const;
  static constexpr std::int64_t max_environment_bytes = std::int64_t{16} << 20;
  /// Returns the object in exit.json; none if it is missing. Throws InputError if it cannot be
  /// read.
  std::optional<nlohmann::ordered_json> read_exit_record() const;
  /// How the previous start ended, by exit.json.
  struct PreviousEnd {
    bool is_done = false;  ///< with code 0
    std::optional<ExitTimes> times = {};
  };
  /// Returns how the previous start ended; a killed start has left no record. A record that cannot
  /// be read is renamed to exit.json.damaged with a warning.
  PreviousEnd previous_end(Log& log) const;
  /// Returns the times of an exit record, if it has both.
  static std::optional<ExitTimes> times_of(const nlohmann::ordered_json& exit_record);

 private:
  std::string path_;
};

}  // namespace trireme::monitor
