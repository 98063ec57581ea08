// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/supervision/rank_reports.hpp"
#include "trireme/base/answer.hpp"
#include "trireme/base/duration.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/device/device.hpp"
#include "trireme/monitor/metrics.hpp"
#include "trireme/monitor/progress.hpp"
#include "trireme/monitor/prometheus.hpp"
#include "trireme/monitor/run_folder.hpp"
#include "trireme/monitor/tensorboard.hpp"
#include "trireme/train/records/prediction_comparison.hpp"
#include "trireme/train/records/time_account.hpp"
#include "trireme/train/run/job_time.hpp"
#include "trireme/train/run/run_state.hpp"
#include "trireme/train/step/evaluation.hpp"
#include "trireme/train/step/step_pipeline.hpp"
#include "trireme/train/supervision/bottleneck.hpp"

namespace trireme::train {

/// Facts for the account of a start. Times are in seconds since 1970-01-01 UTC.
struct StartFacts {
  std::string job = {};  ///< of the batch system, "slurm 4711"; empty outside of a job
  JobStart job_start = {};
  std::optional<monitor::ExitTimes> previous = {};  ///< of the start before
  std::int64_t nodes = 1;
  std::optional<double> time_limit = {};       ///< when this start must have ended
  std::optional<JobEnergy> previous_job = {};  ///< of the start before, if it was another one
  bool has_whole_nodes = false;                ///< The batch system gave all cores of the hosts.
  /// `elapsed_s` of the rows at the time when the process began.
  double elapsed_at_launch = 0;
};

/// Writes the records of a run: metrics.jsonl, TensorBoard files, the progress line and log lines.
/// Only world rank 0 records; on other ranks every call returns at once.
class Recorder {
 public:
  struct Options {
    std::string run_folder;
    bool is_recorder = true;
    bool tensorboard = true;
    /// The file of monitor.prometheus, for all rows of batch.ramp; null: none. Outlives the
    /// recorder.
    monitor::Prometheus* prometheus = nullptr;
    std::int64_t every_steps = 10;  ///< Steps between progress lines if stderr is not a terminal.
    std::int64_t total_steps = 0;   ///< 0: the run ends at a time.
    StepScale scale = {};           ///< Samples of steps and epochs, tokens of samples.
    std::int64_t memory_bytes = 0;  ///< Planned, of this rank's device.
    const Answer* answer = &answer_of(AnswerKind::one_class);
    bool averages = false;   ///< Evaluations use the averaged weights.
    bool fresh = true;       ///< False: the run resumes and appends to its files.
    std::int64_t epoch = 0;  ///< of the first step; the first epoch is 0
    data::Decoding decode = data::Decoding::exact;  ///< The key data.decode.
    Device device = {};
    /// Model FLOPs of a step, mean over the ranks; 0: not recorded.
    double flops_per_rank = 0;
    MachinePrediction prediction = {};
    /// Where the time of this start goes; null: not recorded.
    const TimeAccount* account = nullptr;
    StartFacts start = {};
    /// Rows are written only while it is held; null: always. Outlives the recorder.
    const checkpoint::Lease* lease = nullptr;
  };
  Recorder(const Options& options, Log& log);

  /// Adds a step to the current window of mean times, and updates the progress line. At the end of
  /// an epoch logs a line with the shares of the times and the bottleneck.
  void step(const RunState& state, const StepResult& result);
  /// Writes a row of kind train for the latest step, with means over the window. Starts a new
  /// window.
  void train_row(const RunState& state, const StepResult& result, const optim::StepRates& rates);
  /// Sets the figures of all ranks that the next rows of kind train have. Logs the memory in use
  /// once, and again whenever it has grown by a tenth. `hosts`: of all ranks.
  void set_rank_figures(const RankFigures& figures, const std::vector<std::string>& hosts);
  /// Writes a row of kind noise and a log line. `small_batch`: the samples of a micro-batch.
  void noise_scale(const RunState& state, const NoiseScale& noise, std::int64_t small_batch);
  /// Writes a row of kind tensors for each of the records.
  void tensors(const RunState& state, const std::vector<TensorRecord>& records);
  /// Writes a row of kind evaluate and a log line. `seconds`: how long the evaluation took.
  void evaluation(const RunState& state, const std::string& split, const Metrics& metrics,
                  double seconds);
  /// Writes a row of kind checkpoint and a log line.
  /// - `stall_seconds`: time for which training waited.
  /// - `copy_seconds`: duration of the copies to host memory, on a device concurrent with the
  ///   steps.
  /// - `seconds`: total time, including the writer thread.
  void checkpoint(const RunState& state, const std::string& path, std::int64_t bytes,
                  double stall_seconds, double copy_seconds, double seconds);
  /// Writes a row of kind account. `ended`: this start makes no more steps. Called when a start
  /// begins and ends; checkpoint() and evaluation() write one too.
  void account(const RunState& state, bool ended);
  /// Begins to sum the times of an epoch. Called after a rollback, which may repeat an epoch.
  void begin_epoch(std::int64_t epoch);
  /// Writes a row of kind event.
  void event(const RunState& state, const std::string& event, const std::string& detail);
  /// Writes rows that earlier failed writes left in memory, and looks for removed files. Called at
  /// the end of a run. Throws Failure if the rows cannot be written.
  void write_remaining(const RunState& state);
  /// Clears the progress line, and logs the line of an epoch that has not ended.
  void finish();
  /// Logs the prediction of the run beside what was measured, if there is one.
  void compare_prediction();

 private:
  double epoch_of(const RunState& state) const;
  /// Returns model FLOP/s of a rank at this time of a step, and their part of the peak, if known.
  double flops_per_s(double step_seconds) const { return options_.flops_per_rank / step_seconds; }
  std::optional<double> mfu(double step_seconds) const;
  /// Logs a line about epochs, unless it is empty.
  void log_epochs(const std::string& line);
  static void add_parts(monitor::MetricsRow& row, const std::string& metric, const Scores& scores);
  void write(monitor::MetricsRow& row, const RunState& state);
  /// Adds the sensors of all ranks.
  void add_rank_figures(monitor::MetricsRow& row) const;
  /// Warns when the file of monitor.prometheus can no longer be written.
  void log_prometheus_trouble();
  void write_scalar(const std::string& tag, const RunState& state, double value);
  bool may_write() const { return options_.lease == nullptr || options_.lease->is_held(); }
  /// Opens files anew that were removed or replaced by others, with a warning and an event.
  void reopen_removed_files(const RunState& state);
  Options options_;
  Log& log_;
  monitor::Metrics metrics_;
  monitor::TensorBoard tensorboard_;
  monitor::Progress progress_;
  StepTimes window_;
  EpochSummary epochs_;
  PredictionComparison comparison_;
  std::int64_t window_steps_ = 0, window_skipped_ = 0;
  bool rows_are_waiting_ = false;  ///< The last write failed: rows wait in memory.
  bool prometheus_failed_ = false;
  bool reopening_failed_ = false;  ///< The last removed file could not be opened anew.
  double files_seen_at_ = 0;       ///< Time when removed files were looked for.
  /// Shares of right rows in the steps of the window that have labels.
  struct Hits {
    double sum = 0;
    std::int64_t count = 0;
    void add(double share) {
      sum += share;
      ++count;
    }
    double mean() const { return sum / static_cast<double>(count); }
  } window_hits_;
  double smoothed_step_seconds_ = 0;
  std::optional<RankFigures> figures_;
  std::vector<std::string> hosts_;
  MemoryInUse logged_memory_;
};

}  // namespace trireme::train
