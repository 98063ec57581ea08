// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/train/step/step_pipeline.hpp"

namespace trireme::train {

struct Run;

/// The predicted seconds of a step on the pipeline stage of rank 0. The parts add up to the step.
struct StepPrediction {
  double step = 0, forward = 0, backward = 0, update = 0;
  double waiting = 0;                ///< for requests and for other stages
  std::optional<double> checkpoint;  ///< to write one; none: unknown
};

/// The figures of a run that follow from its machine file.
struct MachinePrediction {
  std::string machine;    ///< its name; empty: the deck has no monitor.machine
  double peak_flops = 0;  ///< dense peak of the compute type in FLOP/s a rank; 0: unknown
  std::optional<StepPrediction> step = {};  ///< none: nothing could be predicted
};

/// Predicts a run on its machine, with batch.ramp the row that begins, and keeps the prediction in
/// the run folder. Library plan, which computes it, is above this one. A failure is a line of the
/// log: does not throw.
using Predictor = std::function<MachinePrediction(const Run&)>;

/// Collects what a start takes and compares it with its prediction.
class PredictionComparison {
 public:
  /// The first half of the steps of a start is left out, but at most this many: they choose
  /// algorithms, fill caches and record graphs.
  static constexpr std::size_t max_first_steps = 10;

  struct Options {
    MachinePrediction prediction = {};
    double flops_per_rank = 0;  ///< model FLOPs of a step, mean over the ranks
    /// False: the device computes while the host goes on, so that the host cannot tell the parts of
    /// its work apart.
    bool host_computes = true;
  };
  explicit PredictionComparison(Options options) : options_(std::move(options)) {}

  void add_step(const StepTimes& times);
  void add_evaluation(double seconds);
  /// `seconds`: all work for a checkpoint, that of the writer thread included.
  void add_checkpoint(double seconds);

  /// Returns lines for the log: the mean of each part, predicted and measured, and their ratio.
  /// Empty if nothing was predicted or no step was made.
  std::vector<std::string> lines() const;

 private:
  /// A number of events and the seconds of all of them.
  struct Events {
    std::int64_t count = 0;
    double seconds = 0;
  };
  std::vector<std::string> lines_of_step(const StepTimes& means) const;

  Options options_;
  std::vector<StepTimes> first_steps_;
  StepTimes later_steps_;  ///< sum
  std::int64_t num_later_steps_ = 0;
  Events evaluations_, checkpoints_;
};

}  // namespace trireme::train
