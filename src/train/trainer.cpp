// train(): one start of a run, from signal handlers to exit.json, and the training loop.
//
// A start checks whether the run is already complete, prepares the run and restores a checkpoint.
// The loop begins a step, ends the oldest step, and then acts on requests and due work: evaluate,
// write a checkpoint, roll back, stop. Called by `trireme train`. evaluate_checkpoint() is in
// evaluation.cpp.
#include "trireme/train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "saver.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/train/algorithm_file.hpp"
#include "trireme/train/recorder.hpp"
#include "trireme/train/restore.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/run_clock.hpp"
#include "trireme/train/run_supervisor.hpp"
#include "trireme/train/stop_request.hpp"

namespace trireme::train {
namespace {

/// Returns whether metrics.jsonl holds the evaluation of a split at a step. Collective.
bool has_recorded_evaluation(const comm::Communicator& world, const std::string& run_folder,
                             std::int64_t step, const std::string& split) {
  std::int64_t found = 0;
  comm::together(world, [&] {
    found = world.rank() == 0 && Recorder::has_evaluation(run_folder, step, split) ? 1 : 0;
  });
  return world.all_reduce(found, comm::Reduction::max) != 0;
}

/// Returns whether a run at this step has nothing left to do: stop condition reached, final
/// validation and test recorded. Collective.
bool is_complete(const comm::Communicator& world, const deck::Deck& deck, std::int64_t total_steps,
                 std::int64_t step, double elapsed_seconds) {
  const bool over = total_steps > 0 ? step >= total_steps : elapsed_seconds >= deck.run.stop.value;
  return over &&
         (deck.data.validation.empty() ||
          has_recorded_evaluation(world, deck.run.folder, step, "validation")) &&
         (deck.data.test.empty() || has_recorded_evaluation(world, deck.run.folder, step, "test"));
}

/// Returns an integer of a checkpoint's state; nothing if it is missing.
std::optional<std::int64_t> integer_state(const checkpoint::Info& info, const std::string& key) {
  const auto found = info.state.find(key);
  const auto* value =
      found == info.state.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

/// State of the run folder, inspected before the datasets, which may be gone by then.
struct FolderState {
  /// The newest valid checkpoint, every byte of which was read; none: not searched.
  std::optional<checkpoint::CheckpointChoice> newest;
  /// The step at which the run was complete; none: not known without the datasets.
  std::optional<std::int64_t> finished_step;
};

/// Checks, for a run that ended with code 0, whether the same deck leaves nothing to do, from its
/// newest valid checkpoint and its metrics. Reads the checkpoint only in that case. Collective.
FolderState inspect_folder(const comm::Communicator& world, const deck::Deck& deck,
                           const RestartPolicy& restart, bool ended_as_done) {
  FolderState look;
  std::int64_t should_inspect = ended_as_done && restart.kind != RestartPolicy::Kind::none ? 1 : 0;
  world.broadcast(std::as_writable_bytes(std::span(&should_inspect, 1)), 0);
  if (should_inspect == 0) return look;
  const checkpoint::CheckpointChoice& newest =
      look.newest.emplace(checkpoint::find_newest(world, deck.run.folder + "/checkpoints"));
  if (newest.path.empty() || !newest.rejected.empty()) return look;
  const checkpoint::Info& info = newest.contents.info;
  const bool same_deck =
      !info.deck.empty() &&
      deck::differences(deck::parse(info.deck, newest.path + ":deck"), deck).empty();
  const std::optional<std::int64_t> total_steps = integer_state(info, "total_steps");
  if (same_deck && total_steps &&
      is_complete(world, deck, *total_steps, info.step, run_state_of(info).elapsed_seconds))
    look.finished_step = info.step;
  return look;
}

/// Resets the best value if it was measured on another validation set.
void reset_best_of_other_set(const Run& run, RestoredRun& restored, Log& log) {
  if (!restored.state.best || restored.deck.empty()) return;
  const std::string before = deck::parse(restored.deck, "the checkpoint's deck").data.validation;
  if (before == run.deck.data.validation) return;
  log.info("data.validation is now \"{}\": best {} reset, it was measured on \"{}\"",
           run.deck.data.validation, restored.state.best_metric, before);
  restored.state.best.reset();
}

/// The training loop of one start: owns everything that changes from step to step.
///
///   overlap, no due work   begin(n)  end(n - 1)  begin(n + 1)  end(n)  ...
///   due work after n       begin(n)  end(n - 1)  end(n)  compare, evaluate, save  begin(n + 1) ...
///
/// Decisions use only values that are equal on all ranks: step numbers, losses and combined
/// requests.
class TrainingLoop {
 public:
  TrainingLoop(Run& run, checkpoint::Lease& lease, const RunClock& clock,
               const RestoredRun& restored, Recorder& recorder, RunSupervisor& guard, Log& log)
      : run_(run),
        lease_(lease),
        clock_(clock),
        deck_(run.deck),
        state_(restored.state),
        recorder_(recorder),
        guard_(guard),
        log_(log),
        schedule_(deck_.schedule, deck_.batch.global, run.layout.schedule_steps, run.layout.scale),
        evaluate_every_(deck_.evaluate.every, run.layout.scale),
        checkpoint_every_(deck_.checkpoint.every, run.layout.scale),
        monitor_every_(deck_.monitor.every, run.layout.scale),
        elapsed_before_(state_.elapsed_seconds),
        steps_(*run.replica, *run.train_loader),
        saver_(run, state_, restored.from_own_folder ? state_.step : -1, recorder, log),
        algorithms_(run.mesh.world, deck_.run.folder, run.replica->context().algorithms(), log),
        trace_(deck_.monitor.trace
                   ? monitor::Trace(run.mesh.world.rank(), deck_.monitor.trace->first,
                                    deck_.monitor.trace->last)
                   : monitor::Trace()),
        finish_(run.layout.total_steps == 0 && state_.elapsed_seconds >= deck_.run.stop.value) {
    if (state_.best && state_.best_metric != deck_.checkpoint.best) {
      if (!deck_.checkpoint.best.empty())
        log_.info("checkpoint.best is now {}: best {} reset", deck_.checkpoint.best,
                  state_.best_metric);
      state_.best.reset();
    }
    if (const std::optional<double> left = clock_.seconds_left()) {
      log_.info("this start ends by itself before {} ({} s left)", clock_.source(),
                std::max(0L, static_cast<long>(*left)));
      if (clock_.must_stop(0, 0))
        log_.warn(
            "that is no more than run.walltime_margin ({} s): this start runs one step and ends; "
            "give it more time, or lower the margin",
            static_cast<long>(deck_.run.walltime_margin.value));
    } else if (!clock_.job_without_end().empty()) {
      log_.info(
          "{} does not report a time limit: if it has one, set run.walltime, so that a "
          "checkpoint is written before it",
          clock_.job_without_end());
    }
  }

  ExitCode train() {
    // 1. Start the loader at the position of the run; set the common state of periodic averaging.
    if (!finished()) run_.train_loader->start(state_.cursor);
    if (run_.replica->average() != nullptr)
      run_.replica->average()->anchor(run_.replica->context());
    bool stop = false;
    while (!finished() && !stop) {
      // 2. Assemble the request of the next step.
      const std::int64_t step = state_.step + steps_.in_flight() + 1;
      const StepRequest request{
          .rate = schedule_.rate(step),
          .stop_requests = own_stop_requests(step),
          .averages = run_.replica->average() != nullptr && common_step(step) == step,
          .loss_limit = loss_limit()};
      // 3. Tell the supervisor, which tells the watchdog.
      guard_.begin_step(step, saver_.newest_step());
      // 4. Enqueue the step.
      steps_.begin(request, trace_for(step));
      // 5. End steps. One step stays in flight unless due work is known to follow it.
      bool past_repair = end_steps(steps_.overlap() && !has_due_work(step) ? 1 : 0);
      if (due_work_.any() || past_repair) past_repair = end_steps(0) || past_repair;
      // 6. Roll back after too many dropped steps.
      if (past_repair) {
        if (!roll_back("the last steps were skipped", false)) return diverged();
        continue;
      }
      // 7. Continue unless all replicas are equal now; else take the work that became due.
      if (steps_.in_flight() > 0 || common_step(step) > step) continue;
      const DueWork due_work = std::exchange(due_work_, {});
      finish_ = finish_ || (due_work.stop_requests & flag_finish) != 0;
      stop = (due_work.stop_requests & flag_stop) != 0;
      // 8. Save unless the last step was dropped: its cause may already be in the weights, so older
      //    checkpoints stay the newest until a step is applied again.
      const bool saves =
          stop ||
          ((finished() || due_work.checkpoint || (due_work.stop_requests & flag_checkpoint) != 0) &&
           !last_step_was_dropped());
      // 9. Compare replicas before anything is saved or evaluated; roll back if they differ.
      if (saves || due_work.evaluation || guard_.comparison_due(step)) {
        if (const std::string differing = guard_.describe_differing_replicas();
            !differing.empty()) {
          if (!roll_back(differing, true)) return corrupted(differing);
          stop = false;
          continue;
        }
      }
      // 10. Evaluate, then save.
      if (run_.validation_loader && (finished() || due_work.evaluation)) evaluate_validation(saves);
      if (saves) write_checkpoint(stop || finished());
    }
    recorder_.finish();
    log_graphs();
    // 11. Write a trace whose last step was not reached; return the exit code.
    if (deck_.monitor.trace && deck_.monitor.trace->first <= state_.step &&
        state_.step < deck_.monitor.trace->last)
      write_trace();
    if (!finished()) return stopped();
    if (last_step_was_dropped()) {
      saver_.wait_until_published(state_);
      return diverged();
    }
    finish_run();
    checkpoint::clear_attempts(run_.mesh.world, deck_.run.folder);
    reason_ = "the stop condition of the deck is reached";
    return ExitCode::done;
  }

  const RunState& state() const { return state_; }
  const std::string& reason() const { return reason_; }
  std::string newest_checkpoint() const {
    return saver_.newest_step() >= 0 ? checkpoint::step_file_name(saver_.newest_step()) : "";
  }

 private:
  /// Work that became due since the last step at which all replicas were equal.
  struct DueWork {
    std::uint64_t stop_requests = flag_none;
    bool evaluation = false, checkpoint = false;
    bool any() const { return stop_requests != flag_none || evaluation || checkpoint; }
  };

  /// Returns the first step >= `step` after which all replicas are equal. Only then the run can be
  /// evaluated, saved or stopped.
  std::int64_t common_step(std::int64_t step) const {
    const std::int64_t every = deck_.parallel.sync_every, next = (step + every - 1) / every * every,
                       last = run_.layout.total_steps;
    return step <= last ? std::min(next, last) : next;
  }

  /// Returns whether the stop condition is reached. Equal on all ranks: times enter only through
  /// requests.
  bool finished() const {
    return run_.layout.total_steps > 0 ? state_.step >= run_.layout.total_steps : finish_;
  }

  /// Returns the loss limit of the next step, from the losses of all earlier steps; with overlap
  /// from all but the last one.
  double loss_limit() const {
    const Health& health = guard_.health();
    return steps_.overlap() && steps_.in_flight() == 0 ? health.previous_loss_limit()
                                                       : health.loss_limit();
  }

  /// Returns whether due work that does not depend on the outcome of this step follows it, before
  /// the next step can begin.
  bool has_due_work(std::int64_t step) const {
    return step == run_.layout.total_steps || evaluate_every_.due(step) ||
           checkpoint_every_.due(step) || guard_.comparison_due(step) ||
           (deck_.monitor.trace && step == deck_.monitor.trace->last);
  }

  /// Ends all but the last `but` steps in flight, and collects requests and due work. Returns
  /// whether one of them made a rollback necessary.
  bool end_steps(int num_running) {
    bool past_repair = false;
    while (steps_.in_flight() > num_running) {
      const StepResult result = steps_.end();
      after_step(result, schedule_.rate(state_.step + 1));
      if (result.applied && !std::exchange(has_applied_step_, true))
        checkpoint::clear_attempts(run_.mesh.world, deck_.run.folder);
      saver_.advance(state_, (result.stop_requests & flag_saving) != 0);
      if (deck_.monitor.trace && state_.step == deck_.monitor.trace->last) write_trace();
      due_work_.stop_requests |= result.stop_requests & ~static_cast<std::uint64_t>(flag_saving);
      due_work_.evaluation = due_work_.evaluation || evaluate_every_.due(state_.step);
      due_work_.checkpoint = due_work_.checkpoint || checkpoint_every_.due(state_.step);
      past_repair = past_repair || guard_.health().needs_rollback();
    }
    return past_repair;
  }

  /// Returns the stop requests of this rank for the next step. Only world rank 0 looks at clocks
  /// and files.
  std::uint32_t own_stop_requests(std::int64_t step) {
    std::uint32_t stop_requests = flag_none;
    if (stop_signal() != 0) stop_requests |= flag_stop;
    if (saver_.busy()) stop_requests |= flag_saving;
    if (run_.mesh.world.rank() != 0) return stop_requests;
    lease_.check();
    const double now = clock_.since_start();
    // A request of the next step takes effect at the next common step (with overlap one step
    // later). An evaluation may be due by then.
    const double steps =
        static_cast<double>(common_step(step + 1) - step + (steps_.overlap() ? 1 : 0));
    const double evaluation =
        evaluate_every_.due(step) || deck_.parallel.sync_every > 1 ? evaluation_seconds_ : 0;
    time_is_up_ = clock_.must_stop(steps * max_step_seconds_ + evaluation, saver_.max_seconds());
    if (time_is_up_) stop_requests |= flag_stop;
    // At most two stat calls per second: a parallel file system is slow at them.
    if (now - stop_file_checked_at_ >= 0.5) {
      stop_file_checked_at_ = now;
      struct stat status{};
      stop_file_ = stat((deck_.run.folder + "/STOP").c_str(), &status) == 0;
    }
    if (stop_file_) stop_requests |= flag_stop;
    if (run_.layout.total_steps == 0 && elapsed_before_ + now >= deck_.run.stop.value)
      stop_requests |= flag_finish;
    if (checkpoint_every_.has_elapsed(now - last_checkpoint_at_)) stop_requests |= flag_checkpoint;
    return stop_requests;
  }

  /// Returns the trace if this step is to be traced, else null.
  monitor::Trace* trace_for(std::int64_t step) {
    trace_.begin_step(step);
    return trace_.is_recording() ? &trace_ : nullptr;
  }

  /// Writes the events of all ranks to trace.json, after the last traced step or at the end of the
  /// run. A failed write is logged as a warning. Collective.
  void write_trace() {
    const comm::Communicator& world = run_.mesh.world;
    const std::string mine = trace_.json();
    run_.engine.quiesce();
    std::vector<std::string> parts;
    for (int rank = 0; rank < world.size(); ++rank) parts.push_back(world.broadcast(mine, rank));
    if (world.rank() != 0) return;
    try {
      monitor::write_trace(deck_.run.folder + "/trace.json", parts);
    } catch (const std::exception& error) {
      log_.warn("{}", error.what());
    }
  }

  /// Updates the state of the run after a step and writes its records.
  void after_step(const StepResult& result, double rate) {
    ++state_.step;
    state_.samples += deck_.batch.global;
    state_.cursor = run_.cutter.advance(state_.cursor);
    state_.elapsed_seconds = elapsed_before_ + clock_.since_start();
    max_step_seconds_ = std::max(max_step_seconds_, result.times.total);
    if (!result.applied) ++state_.skipped;
    recorder_.step(state_, result);
    const bool row = monitor_every_.due(state_.step) || finished();
    guard_.end_step(state_, result, steps_.statuses(), row);
    if (row) recorder_.train_row(state_, result, rate);
  }

  /// Logs how many kernel launches were replayed by CUDA graphs.
  void log_graphs() const {
    const LaunchGraphs& graphs = run_.replica->graphs();
    if (graphs.launch_count() > 0)
      log_.info("CUDA graphs: {} of {} kernel launches replayed ({} graphs)",
                graphs.replayed_launch_count(), graphs.launch_count(), graphs.graph_count());
    if (!graphs.refusal_reason().empty())
      log_.warn("the device refused a CUDA graph, its kernels are launched one by one: {}",
                graphs.refusal_reason());
  }

  bool last_step_was_dropped() const { return state_.health.consecutive_dropped > 0; }

  /// Rolls back to the newest checkpoint of this run. The data continue after the failed steps, or
  /// with `repeats` from the position of the checkpoint.
  ///
  /// Returns false if there is no checkpoint or the number of rollbacks is used up. Collective.
  bool roll_back(const std::string& why, bool repeats) {
    saver_.wait_until_published(state_);
    if (!guard_.health().may_roll_back()) return false;
    run_.replica->reducer().complete_pending(run_.replica->context());
    run_.engine.quiesce();
    enter_phase("checkpoint-read");
    const checkpoint::CheckpointChoice choice =
        checkpoint::find_newest(run_.mesh.world, checkpoint_folder());
    if (choice.path.empty()) return false;
    checkpoint::rename_damaged(run_.mesh.world, choice.rejected, log_);
    const RunState then = reload_checkpoint(run_, choice.path, log_);
    guard_.health().rolled_back(then.health);
    const std::string detail =
        fmt::format("{}: rolled back from step {} to {}, {}", why, state_.step, then.step,
                    repeats ? "repeating the same data" : "skipping the data since");
    state_.step = then.step;
    saver_.rolled_back(then.step);
    state_.samples = then.samples;
    if (repeats) state_.cursor = then.cursor;
    state_.health = guard_.health().state();
    finish_ = false;
    due_work_ = {};
    if (run_.replica->average() != nullptr)
      run_.replica->average()->anchor(run_.replica->context());
    run_.train_loader->start(state_.cursor);
    recorder_.event(state_, "rollback", detail);
    log_.warn("{}", detail);
    return true;
  }

  /// Evaluates on the validation set and updates the best value. `saves`: a checkpoint of this step
  /// follows, which becomes best.h5 if it is the best.
  void evaluate_validation(bool saves) {
    const double start = monotonic_seconds();
    const Metrics metrics = evaluate(*run_.replica, *run_.validation_loader);
    evaluation_seconds_ = std::max(evaluation_seconds_, monotonic_seconds() - start);
    recorder_.evaluation(state_, "validation", metrics);
    if (deck_.checkpoint.best.empty()) return;
    const bool higher = deck_.checkpoint.best == "top1";
    const double value = higher                                  ? metrics.top1
                         : deck_.checkpoint.best == "perplexity" ? metrics.perplexity()
                                                                 : metrics.loss;
    if (!std::isfinite(value) ||
        (state_.best && (higher ? value <= *state_.best : value >= *state_.best)))
      return;
    state_.best = value;
    state_.best_metric = deck_.checkpoint.best;
    state_.best_step = state_.step;
    best_is_new_ = true;
    if (!saves && std::exchange(best_is_new_, false)) saver_.save_best(state_);
  }

  std::string checkpoint_folder() const { return deck_.run.folder + "/checkpoints"; }

  void write_checkpoint(bool now) {
    const bool best = std::exchange(best_is_new_, false);
    if (now)
      saver_.save_now(state_, best);
    else
      saver_.save(state_, best);
    // A restart is possible from the first checkpoint on. No communication is in flight here, which
    // the collective update() needs.
    algorithms_.update();
    last_checkpoint_at_ = clock_.since_start();
  }

  /// At the stop condition: final validation, final checkpoint and the test set, each unless it is
  /// done already.
  void finish_run() {
    if (run_.validation_loader &&
        !has_recorded_evaluation(run_.mesh.world, deck_.run.folder, state_.step, "validation"))
      evaluate_validation(true);
    write_checkpoint(true);
    if (run_.test_loader &&
        !has_recorded_evaluation(run_.mesh.world, deck_.run.folder, state_.step, "test"))
      recorder_.evaluation(state_, "test", evaluate(*run_.replica, *run_.test_loader));
  }

  /// The three ends of a run other than done: logs the reason and returns the exit code.
  ExitCode stopped() {
    reason_ = stop_signal() != 0 ? signal_name(stop_signal())
              : stop_file_       ? "STOP file"
              : time_is_up_      ? clock_.source()
                                 : "a signal at another rank";
    recorder_.event(state_, "stopped", reason_);
    const std::string first =
        stop_file_ ? fmt::format("remove {}/STOP and ", deck_.run.folder) : "";
    log_.info("stopped at step {} ({}); {}submit the same command again to resume", state_.step,
              reason_, first);
    return ExitCode::stopped_early;
  }

  ExitCode diverged() {
    recorder_.finish();
    const HealthState& health = guard_.health().state();
    reason_ = fmt::format(
        "loss or gradient not finite, or loss far above its mean, in {} consecutive steps, after "
        "{} "
        "rollbacks",
        health.consecutive_dropped, health.rollbacks);
    recorder_.event(state_, "diverged", reason_);
    log_.warn("diverged at step {}: {}; a lower rate, a longer warm-up or clip_norm may help",
              state_.step, reason_);
    return ExitCode::diverged;
  }

  ExitCode corrupted(const std::string& differing) {
    recorder_.finish();
    reason_ = differing;
    recorder_.event(state_, "replicas_differ", reason_);
    log_.error("step {}: {}; submit the same command again, if possible without that host",
               state_.step, reason_);
    return ExitCode::rank_lost;
  }

  Run& run_;
  checkpoint::Lease& lease_;
  const RunClock& clock_;
  const deck::Deck& deck_;
  RunState state_;
  Recorder& recorder_;
  RunSupervisor& guard_;
  Log& log_;
  optim::Schedule schedule_;
  Interval evaluate_every_, checkpoint_every_, monitor_every_;
  double elapsed_before_;
  StepPipeline steps_;
  Saver saver_;
  AlgorithmFile algorithms_;
  monitor::Trace trace_;
  DueWork due_work_;
  bool finish_;  ///< run.stop is a time and has passed.
  double max_step_seconds_ = 0, evaluation_seconds_ = 0;
  double last_checkpoint_at_ = 0, stop_file_checked_at_ = -1;
  bool stop_file_ = false, time_is_up_ = false, best_is_new_ = false, has_applied_step_ = false;
  std::string reason_;
};

}  // namespace

ExitCode train(const TrainRequest& request, comm::Environment& environment, comm::Engine& engine,
               Log& log) {
  // 1. From here on a signal asks for a stop, also while datasets are opened and weights are read.
  install_stop_signals();
  const comm::Communicator& world = environment.world();
  const deck::Deck& deck = request.deck;
  const bool is_rank_0 = world.rank() == 0;
  // 2. Start the clock, acquire the run folder and prepare the exit record.
  const RunClock clock = is_rank_0 ? RunClock(deck.run) : RunClock();
  checkpoint::ExitRecord record;
  record.start = utc_timestamp();
  RunFolder folder = acquire_run_folder(deck, environment, log);
  // True until the run is restored: an input error so far removes a folder that this start
  // created.
  bool is_starting = true;
  // Writes exit.json: on world rank 0, or (`alone`) on a rank whose error ends the job.
  const auto write_record = [&](ExitCode code, const std::string& reason, bool alone = false) {
    if (!is_rank_0 && !alone) return;
    record.code = code;
    record.reason = reason;
    try {
      checkpoint::write_exit_record(deck.run.folder, record);
    } catch (const std::exception& error) {  // A full disk must not prevent the exit.
      log.warn("{}", error.what());
    }
  };
  const auto code_of = [](const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    return known != nullptr ? known->code() : ExitCode::failure;
  };

  try {
    const auto nothing_to_do = [&](std::int64_t step) {
      record.step = step;
      record.checkpoint = checkpoint::step_file_name(step);
      write_record(ExitCode::done,
                   "the stop condition of the deck was reached before; nothing to do");
      checkpoint::clear_attempts(world, deck.run.folder);
      log.info("the stop condition is reached and everything is recorded: nothing to do");
      return ExitCode::done;
    };
    // 3. Return at once if an earlier start has done everything.
    const FolderState look = inspect_folder(world, deck, request.restart, folder.ended_as_done);
    if (look.finished_step) return nothing_to_do(*look.finished_step);
    // 4. Start the watchdog.
    std::unique_ptr<Watchdog> watchdog;
    if (deck.health.watchdog)
      watchdog = std::make_unique<Watchdog>(
          Watchdog::Options{deck.run.folder, record.start, deck.health.watchdog->value},
          environment, engine, log);
    // 5. Prepare the run: datasets, layout, memory. Load a checkpoint or initial weights.
    const std::vector<std::string> hosts = gather_hosts(environment);
    Run run(deck, environment, engine, log);
    RestoredRun restored = restore(run, request.restart, look.newest, log);
    reset_best_of_other_set(run, restored, log);
    record.step = restored.state.step;
    if (restored.from_own_folder)
      record.checkpoint = checkpoint::step_file_name(restored.state.step);
    if (restored.from_own_folder &&
        is_complete(world, deck, run.layout.total_steps, restored.state.step,
                    restored.state.elapsed_seconds))
      return nothing_to_do(restored.state.step);
    // 6. The start has succeeded: record it and open the metrics.
    is_starting = false;
    run.record_start(environment);
    std::unique_ptr<Recorder> recorder;
    comm::together(world, [&] {
      recorder = std::make_unique<Recorder>(
          Recorder::Options{.run_folder = deck.run.folder,
                            .is_recorder = is_rank_0,
                            .tensorboard = deck.monitor.tensorboard,
                            .every_steps = run.progress_steps(),
                            .total_steps = run.layout.total_steps,
                            .global = deck.batch.global,
                            .samples_per_epoch = run.layout.samples_per_epoch,
                            .tokens_per_sample = run.layout.scale.tokens_per_sample,
                            .memory_bytes = run.plan.total(),
                            .averages = deck.optimizer.ema > 0,
                            .fresh = restored.state.step == 0,
                            .device = run.device},
          log);
      if (restored.state.step > 0)
        recorder->event(restored.state, "restart",
                        fmt::format("resumed from step {}", restored.state.step));
    });

    // 7. Train.
    RunSupervisor guard(run, restored.state, hosts, watchdog.get(), *recorder, log);
    TrainingLoop loop(run, folder.lease, clock, restored, *recorder, guard, log);
    try {
      const ExitCode code = loop.train();
      // 8. Wait for communication (gathers of the last update may still write to the replica's
      //    memory), flush the metrics, write exit.json.
      run.engine.quiesce();
      enter_phase("end");
      if (const std::size_t bytes = run.engine.staging_bytes(); bytes > 0)
        log.info("pinned host memory for communication, not in the memory plan: {}",
                 format_bytes(static_cast<double>(bytes)));
      record.step = loop.state().step;
      record.checkpoint = loop.newest_checkpoint();
      comm::together(world, [&] { recorder->write_remaining(); });
      write_record(code, loop.reason());
      return code;
    } catch (const std::exception& error) {
      // An error of this rank alone. The other ranks wait in a collective call, and the engine may
      // still use this rank's buffers. So end the job from here, before any destructor runs.
      const auto* known = dynamic_cast<const Error*>(&error);
      record.step = loop.state().step;
      record.checkpoint = loop.newest_checkpoint();
      if (world.size() == 1 || (known != nullptr && known->thrown_on_all_ranks())) throw;
      write_record(code_of(error), error.what(), true);
      log.error("rank {} on {}: {}", world.rank(), environment.host(), error.what());
      log.flush();
      environment.abort(code_of(error));
    }
  } catch (const std::exception& error) {
    if (folder.is_new && is_starting && code_of(error) == ExitCode::wrong_input)
      release_run_folder(folder, deck.run.folder);
    else
      write_record(code_of(error), error.what());
    throw;
  }
}

}  // namespace trireme::train
