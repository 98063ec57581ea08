#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/log.hpp"
#include "trireme/device/telemetry.hpp"
#include "trireme/monitor/metrics.hpp"
#include "trireme/monitor/progress.hpp"
#include "trireme/monitor/tensorboard.hpp"
#include "trireme/train/evaluation.hpp"
#include "trireme/train/run_state.hpp"
#include "trireme/train/step_pipeline.hpp"

namespace trireme::train {

/// What a run leaves behind for people and programs: metrics.jsonl, TensorBoard, the progress line,
/// the log. World rank 0 records; elsewhere every call does nothing.
class Recorder {
 public:
  struct Options {
    std::string run_folder;
    bool is_recorder = true;
    bool tensorboard = true;
    std::int64_t every_steps = 10;  ///< lines of progress where stderr is no terminal
    std::int64_t total_steps = 0;   ///< 0: the end is a time
    std::int64_t global = 1, samples_per_epoch = 1;
    std::int64_t tokens_per_sample = 0;  ///< 0: images
    std::int64_t memory_bytes = 0;
    bool averages = false;  ///< evaluations are of the average of the weights
    bool fresh = true;      ///< false: the run goes on, in the same files
    Device device;          ///< whose sensors go into the rows
  };
  Recorder(const Options& options, Log& log);

  /// Adds a step to the window over which times are means, and moves the progress line.
  void step(const RunState& state, const StepResult& result);
  /// A row of kind train for the step just added; ends the window.
  void train_row(const RunState& state, const StepResult& result, double rate);
  void evaluation(const RunState& state, const std::string& split, const Metrics& metrics);
  /// `stall_seconds`: what it kept the steps waiting; `copy_seconds`: the copies, on a device
  /// beside the steps; `seconds`: all that was done for it, by a thread too.
  void checkpoint(const RunState& state, const std::string& path, std::int64_t bytes,
                  double stall_seconds, double copy_seconds, double seconds);
  void event(const RunState& state, const std::string& event, const std::string& detail);
  /// At the end of a run: rows that the disk did not take are tried once more. Throws Failure where
  /// they would be lost.
  void write_remaining();
  /// Ends the progress line.
  void finish() { progress_.clear(); }

  /// Whether metrics.jsonl has an evaluation of `split` at `step` since the last fresh start: a
  /// start at the stop condition does only what is still missing.
  static bool has_evaluation(const std::string& run_folder, std::int64_t step,
                             const std::string& split);

 private:
  double epoch_of(const RunState& state) const;
  void write(monitor::MetricsRow& row, const RunState& state);
  Options options_;
  Log& log_;
  Telemetry telemetry_;
  monitor::Metrics metrics_;
  monitor::TensorBoard tensorboard_;
  monitor::Progress progress_;
  StepTimes window_;
  std::int64_t window_steps_ = 0, window_skipped_ = 0;
  bool rows_are_waiting_ = false;  ///< the disk does not take them
  double smoothed_step_seconds_ = 0, window_top1_ = 0;
};

}  // namespace trireme::train
