// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "algorithm_file.hpp"
#include "restore.hpp"
#include "saver.hpp"
#include "stop_request.hpp"
#include "train/records/recorder.hpp"
#include "train/supervision/run_supervisor.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/monitor/trace.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/run_clock.hpp"
#include "trireme/train/run/run_state.hpp"
#include "trireme/train/step/step_pipeline.hpp"

namespace trireme::train {

/// Returns whether a run at this step has nothing left to do: stop condition reached, final
/// validation and test recorded. Collective.
bool is_complete(const comm::Communicator& world, const deck::Deck& deck, std::int64_t total_steps,
                 std::int64_t step, double elapsed_seconds);

/// Values of a start that pass from one row of batch.ramp to the next.
struct StartProgress {
  double elapsed_before = 0;    ///< Seconds that earlier starts of this run took.
  double max_step_seconds = 0;  ///< Of the longest step of this start; scaled to the next row.
  /// Longest durations of an evaluation and of a checkpoint.
  double evaluation_seconds = 0, checkpoint_seconds = 0;
  double last_checkpoint_at = 0;  ///< On the clock of this start.
  bool is_first_row = true;       ///< The start begins with this row.
};

/// The training loop of one start, or with batch.ramp of one of its rows: owns everything that
/// changes from step to step.
///
///   overlap, no due work   begin(n)  end(n - 1)  begin(n + 1)  end(n)  ...
///   due work after n       begin(n)  end(n - 1)  end(n)  compare, evaluate, save  begin(n + 1) ...
///
/// Decisions use only values that are equal on all ranks: step numbers, losses and combined
/// requests.
class TrainingLoop {
 public:
  /// The objects of this start that the loop uses. All of them outlive the loop.
  struct Parts {
    Run& run;
    checkpoint::Lease& lease;
    const RunClock& clock;
    Recorder& recorder;
    RunSupervisor& supervisor;
    monitor::Trace& trace;
    Log& log;
  };
  /// Continues at the state of `restored`. Logs the time limit of this start. Collective.
  TrainingLoop(const Parts& parts, const RestoredRun& restored, const StartProgress& progress);

  /// Trains until the stop condition, a stop request or an error, and returns the exit code: done,
  /// stopped_early, diverged or rank_lost (replicas differ). Returns nothing if the next step
  /// belongs to another row of batch.ramp; its checkpoint is then written. Collective over the
  /// world.
  std::optional<ExitCode> train();

  const RunState& state() const { return state_; }
  /// Returns what the loop of the next row begins with.
  StartProgress progress() const;
  /// Returns the reason for the end of train(), for exit.json.
  const std::string& reason() const { return reason_; }

 private:
  /// Work that became due since the last step at which all replicas were equal.
  struct DueWork {
    std::uint64_t stop_requests = flag_none;
    bool evaluation = false, checkpoint = false;
    bool any() const { return stop_requests != flag_none || evaluation || checkpoint; }
  };

  /// Returns the first step >= `step` after which all replicas are equal. Only then the run can be
  /// evaluated, saved or stopped.
  std::int64_t common_step(std::int64_t step) const;
  /// Returns whether the stop condition is reached. Equal on all ranks: times enter only through
  /// requests.
  bool finished() const;
  /// Returns the loss limit of the next step, from the losses of all earlier steps; with overlap
  /// from all but the last one.
  double loss_limit() const;
  /// Returns whether a metrics row is due after this step. A run that ends at a time has one more,
  /// at its end.
  bool row_due(std::int64_t step) const;
  /// Returns whether the run has a validation set, and an evaluation is due after this step.
  bool evaluation_due(std::int64_t step) const;
  /// Returns whether due work that does not depend on the outcome of this step follows it, before
  /// the next step can begin.
  bool has_due_work(std::int64_t step) const;
  bool last_step_was_dropped() const { return state_.health.consecutive_dropped > 0; }

  /// Ends all but the last `num_running` steps in flight, and collects requests and due work.
  /// Returns whether one of them made a rollback necessary.
  bool end_steps(int num_running);
  /// Returns the stop requests of this rank for the next step. Only world rank 0 looks at clocks
  /// and files.
  std::uint32_t own_stop_requests(std::int64_t step);
  /// Updates the state of the run after a step and writes its records.
  void after_step(const StepResult& result);
  /// Returns learning rate and momentum of a step that follows the evaluations so far.
  optim::StepRates rates_of(std::int64_t step) const;

  /// Returns the trace if this step is to be traced, else null.
  monitor::Trace* trace_for(std::int64_t step);
  /// Writes the events of all ranks to trace.json, after the last traced step or at the end of the
  /// run. A failed write is logged as a warning. Collective.
  void write_trace();
  /// Logs how many kernel launches were replayed by CUDA graphs.
  void log_graphs() const;
  /// Logs the number and the time of new trials of library algorithms.
  void log_trials();
  /// Logs what the noise scale means for the batch, if it was measured.
  void log_noise_advice() const;

  /// Rolls back to the newest checkpoint of this run. The data continue after the failed steps, or
  /// with `repeats` from the position of the checkpoint.
  ///
  /// Returns false if there is no checkpoint or the number of rollbacks is used up. Collective.
  bool roll_back(const std::string& why, bool repeats);
  /// Drops what the plateau remembers if the deck's schedule is of another kind, and its best value
  /// if that is of another metric.
  void adapt_plateau();
  /// Evaluates on the validation set and updates the best value. `saves`: a checkpoint of this step
  /// follows, which becomes best.h5 if it is the best. `is_due`: evaluate.every asks for it. Only
  /// such evaluations can reduce the rate: others depend on where a run was stopped.
  void evaluate_validation(bool saves, bool is_due);
  /// Evaluates a set and records the result. `names_worst`: logs the classes of images with the
  /// lowest accuracy, too. `before_error` as in evaluate(). Collective.
  Metrics evaluate_set(data::Loader& loader, const std::string& split, bool names_worst,
                       const std::function<void()>& before_error = {});
  /// Counts an evaluation for schedule.kind = "plateau".
  void count_for_plateau(const Metrics& metrics);
  std::string checkpoint_folder() const { return run_.folder().checkpoints(); }
  /// Gives a checkpoint its final name, unless the lease or a rank is lost. Rank 0, any thread.
  void publish(io::StagedFile& file);
  /// Writes a checkpoint and algorithms.txt. `now`: returns when the checkpoint is published.
  void write_checkpoint(bool now);

  /// Returns whether the next step belongs to this row of batch.ramp.
  bool is_in_row() const { return run_.layout.contains_step(state_.step + 1); }
  /// Ends the run after the last step of this start, and returns the exit code.
  ExitCode end_run();
  /// At the stop condition: final validation, final checkpoint and the test set, each unless it is
  /// done already.
  void finish_run();
  /// Writes a checkpoint of the last step, unless that may be damaged: samples cannot be read, and
  /// this start ends with an error. Collective.
  void save_before_error();
  /// Runs `body`, which writes or publishes a checkpoint. An error of all ranks is only logged, so
  /// that the start ends with the error of the samples.
  template <class Body>
  void try_before_error(Body&& body);
  /// Ends a start whose next step could not read its samples: publishes the checkpoint that is
  /// being written, with sync = "step" saves the step before, and throws the reader's error on all
  /// ranks. Collective.
  void end_unreadable();
  /// The three ends of a run other than done: logs the reason and returns the exit code.
  ExitCode stopped();
  ExitCode diverged();
  ExitCode corrupted(const std::string& differing);

  Run& run_;
  checkpoint::Lease& lease_;
  const RunClock& clock_;
  const deck::Deck& deck_;
  RunState state_;
  Recorder& recorder_;
  RunSupervisor& supervisor_;
  Log& log_;
  optim::Schedule schedule_;
  Interval evaluate_every_, checkpoint_every_, monitor_every_;
  std::optional<Interval> noise_every_, tensors_every_;  ///< monitor.noise_scale and tensors
  std::vector<double> noise_scales_;                     ///< that were measured, in samples
  StartProgress progress_;
  StepPipeline steps_;
  Saver saver_;
  /// Only where algorithms are chosen by trial: on CUDA devices, in runs that are not
  /// deterministic.
  std::optional<AlgorithmFile> algorithms_;
  std::int64_t logged_trials_ = 0;  ///< trials that were logged
  StopFile stop_file_;
  monitor::Trace& trace_;
  DueWork due_work_;
  bool finish_;  ///< run.stop is a time and has passed.
  bool time_is_up_ = false, best_is_new_ = false, has_applied_step_ = false;
  bool unreadable_ = false;  ///< A step in flight could not read its samples.
  std::string reason_;
};

}  // namespace trireme::train
