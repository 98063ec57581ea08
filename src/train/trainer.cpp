// train(): one start of a run, from signal handlers to exit.json.
//
// A start checks whether the run is already complete, prepares the run, restores a checkpoint and
// runs the training loop (training_loop.cpp). ExitRecorder writes how the start ended. Called by
// `trireme train`. evaluate_checkpoint() is in evaluation.cpp.
#include "trireme/train/trainer.hpp"

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "start_record.hpp"
#include "training_loop.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/train/recorder.hpp"
#include "trireme/train/report_signal.hpp"
#include "trireme/train/restore.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/run_clock.hpp"
#include "trireme/train/run_supervisor.hpp"
#include "trireme/train/stop_request.hpp"
#include "trireme/train/watchdog.hpp"

namespace trireme::train {
namespace {

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
  FolderState found;
  std::int64_t should_inspect = ended_as_done && restart.kind != RestartPolicy::Kind::none ? 1 : 0;
  world.broadcast(std::as_writable_bytes(std::span(&should_inspect, 1)), 0);
  if (should_inspect == 0) return found;
  const checkpoint::CheckpointChoice& newest =
      found.newest.emplace(checkpoint::find_newest(world, deck.run.folder + "/checkpoints"));
  if (newest.path.empty() || !newest.rejected.empty()) return found;
  const checkpoint::Info& info = newest.contents.info;
  const bool same_deck =
      !info.deck.empty() &&
      deck::differences(deck::parse_stored(info.deck, newest.path + ":deck").deck, deck).empty();
  const std::optional<std::int64_t> total_steps = integer_state(info, "total_steps");
  if (same_deck && total_steps &&
      is_complete(world, deck, *total_steps, info.step, run_state_of(info).elapsed_seconds))
    found.finished_step = info.step;
  return found;
}

/// Resets the best value, and that of the plateau, if evaluations of this run cannot be compared
/// with it: it was measured on another validation set, or it is a loss with label smoothing (of an
/// earlier version).
void reset_incomparable_best(const Run& run, RestoredRun& restored, Log& log) {
  RunState& state = restored.state;
  if (!restored.deck) return;
  const deck::Deck& before = *restored.deck;
  if (before.data.validation != run.deck.data.validation && state.plateau.best) {
    log.info("data.validation is now \"{}\": best {} of the plateau reset",
             run.deck.data.validation, state.plateau.metric);
    state.plateau.forget_best();
  }
  if (!state.best) return;
  const double smoothing = state.best_label_smoothing.value_or(before.loss.label_smoothing);
  if (before.data.validation != run.deck.data.validation) {
    log.info("data.validation is now \"{}\": best {} reset, it was measured on \"{}\"",
             run.deck.data.validation, state.best_metric, before.data.validation);
    state.best.reset();
  } else if (smoothing > 0 && state.best_metric != "top1") {
    log.info("best {} reset: it was measured with label smoothing {}, evaluations are without",
             state.best_metric, smoothing);
    state.best.reset();
  }
  state.best_label_smoothing = 0;
}

/// Reports a restart whose deck changes the learning rate of the next step by more than a factor of
/// 2: the loss may jump too.
void report_rate_jump(const Run& run, const RestoredRun& restored, Recorder& recorder, Log& log) {
  const RunState& state = restored.state;
  if (!restored.deck || state.step == 0) return;
  const auto rate_by = [&](const deck::Deck& deck) {
    return scheduled_rate(
        {deck.run, deck.batch, deck.parallel, deck.data, deck.schedule, deck.model},
        run.train_set.info(), state.step + 1, state.plateau.reductions);
  };
  const std::optional<double> before = rate_by(*restored.deck), after = rate_by(run.deck);
  constexpr double largest = 2;
  if (!before || !after || (*after <= largest * *before && *before <= largest * *after)) return;
  const std::string detail = fmt::format(
      "the learning rate of step {} is {:.4g}, by the deck of the checkpoint it was {:.4g}",
      state.step + 1, *after, *before);
  comm::together(run.mesh.world, [&] { recorder.event(state, "rate_jump", detail); });
  log.warn("{}", detail);
}

/// Keeps the exit record of one start and writes it to exit.json.
class ExitRecorder {
 public:
  /// The start begins now. `writes`: this is world rank 0, which writes for all ranks.
  ExitRecorder(std::string run_folder, bool writes, Log& log)
      : run_folder_(std::move(run_folder)), writes_(writes), log_(log) {
    record_.start = utc_timestamp();
  }

  const std::string& start_time() const { return record_.start; }

  /// Notes the step that the run has reached and its newest checkpoint ("": none).
  void set_progress(std::int64_t step, const std::string& checkpoint) {
    record_.step = step;
    record_.checkpoint = checkpoint;
  }

  /// Writes exit.json on world rank 0. A failed write is logged as a warning.
  void write(ExitCode code, const std::string& reason) {
    if (writes_) write_on_this_rank(code, reason);
  }

  /// Writes exit.json on any rank: for an error of this rank that ends the job.
  void write_on_this_rank(ExitCode code, const std::string& reason) {
    record_.code = code;
    record_.reason = reason;
    try {
      checkpoint::write_exit_record(run_folder_, record_);
    } catch (const std::exception& error) {  // A full disk must not prevent the exit.
      log_.warn("{}", error.what());
    }
  }

 private:
  std::string run_folder_;
  bool writes_;
  Log& log_;
  checkpoint::ExitRecord record_;
};

/// Ends a start that finds the run complete at `step`: writes exit.json and returns the exit code.
ExitCode end_complete_run(const comm::Communicator& world, const deck::Deck& deck,
                          std::int64_t step, ExitRecorder& exit_recorder, Log& log) {
  exit_recorder.set_progress(step, checkpoint::step_file_name(step));
  exit_recorder.write(ExitCode::done,
                      "the stop condition of the deck was reached before; nothing to do");
  checkpoint::clear_attempts(world, deck.run.folder);
  log.info("the stop condition is reached and everything is recorded: nothing to do");
  return ExitCode::done;
}

Watchdog::Options watchdog_options(const deck::Deck& deck, const std::string& start_time) {
  Watchdog::Options options{deck.run.folder, start_time, std::nullopt};
  if (deck.health.watchdog) options.min_deadline_seconds = deck.health.watchdog->value;
  return options;
}

/// Opens the metrics of a run, and writes an event row if the run resumes. Collective.
std::unique_ptr<Recorder> open_recorder(const comm::Communicator& world, const deck::Deck& deck,
                                        const Run& run, const RunState& state, Log& log) {
  std::unique_ptr<Recorder> recorder;
  comm::together(world, [&] {
    recorder = std::make_unique<Recorder>(
        Recorder::Options{.run_folder = deck.run.folder,
                          .is_recorder = world.rank() == 0,
                          .tensorboard = deck.monitor.tensorboard,
                          .every_steps = run.progress_steps(),
                          .total_steps = run.layout.total_steps,
                          .global = deck.batch.global,
                          .samples_per_epoch = run.layout.samples_per_epoch,
                          .tokens_per_sample = run.layout.scale.tokens_per_sample,
                          .memory_bytes = run.plan.total(),
                          .averages = deck.optimizer.ema > 0,
                          .fresh = state.step == 0,
                          .epoch = state.cursor.epoch,
                          .decode = deck.data.decode,
                          .device = run.device},
        log);
    if (state.step > 0)
      recorder->event(state, "restart", fmt::format("resumed from step {}", state.step));
  });
  return recorder;
}

/// Waits for communication after the last step: gathers of the last update may still write to the
/// replica's memory. Logs the pinned memory that communication took.
void end_communication(comm::Engine& engine, Log& log) {
  engine.quiesce();
  enter_phase("end");
  if (const std::size_t bytes = engine.staging_bytes(); bytes > 0)
    log.info("pinned host memory for communication, not in the memory plan: {}",
             format_bytes(static_cast<double>(bytes)));
}

/// Writes exit.json and ends the job after an error of this rank alone.
///
/// The other ranks wait in a collective call, and the engine may still use this rank's buffers. So
/// the job ends here, before any destructor runs.
[[noreturn]] void abort_job(const Error& error, const std::string& run_folder,
                            comm::Environment& environment, ExitRecorder& exit_recorder, Log& log) {
  exit_recorder.write_on_this_rank(error.code(), error.what());
  try {
    // Only rank 0 has the file open. Both append whole lines.
    if (environment.world().rank() != 0) log.open_file(run_folder + "/log.txt");
  } catch (const std::exception& caught) {
    log.warn("{}", caught.what());
  }
  log.error("rank {} on {}: {}", environment.world().rank(), environment.host(), error.what());
  log.flush();
  environment.abort(error.code());
}

}  // namespace

ExitCode train(const TrainRequest& request, comm::Environment& environment, comm::Engine& engine,
               Log& log) {
  // 1. From here on a signal asks for a stop or for a report, also while datasets are opened and
  //    weights are read.
  install_stop_signals();
  install_report_signal();
  const comm::Communicator& world = environment.world();
  const deck::Deck& deck = request.deck;
  // 2. Start the clock, prepare the exit record and acquire the run folder.
  const RunClock clock = world.rank() == 0 ? RunClock(deck.run) : RunClock();
  ExitRecorder exit_recorder(deck.run.folder, world.rank() == 0, log);
  RunFolder folder = acquire_run_folder(deck, environment, log);
  // While true, an input error removes a folder that this start created.
  bool is_starting = true;
  try {
    // 3. Return at once if an earlier start has done everything.
    const FolderState found = inspect_folder(world, deck, request.restart, folder.ended_as_done);
    if (found.finished_step)
      return end_complete_run(world, deck, *found.finished_step, exit_recorder, log);
    check_writable(world, deck.run.folder);
    // 4. Start the watchdog.
    Watchdog watchdog(watchdog_options(deck, exit_recorder.start_time()), environment, engine, log);
    // 5. Prepare the run: datasets, layout, memory. Load a checkpoint or initial weights.
    const std::vector<std::string> hosts = gather_hosts(environment);
    Run run(deck, environment, engine, log);
    RestoredRun restored = restore(run, request.restart, found.newest, log);
    reset_incomparable_best(run, restored, log);
    const std::int64_t step = restored.state.step;
    exit_recorder.set_progress(step,
                               restored.from_own_folder ? checkpoint::step_file_name(step) : "");
    if (restored.from_own_folder &&
        is_complete(world, deck, run.layout.total_steps, step, restored.state.elapsed_seconds))
      return end_complete_run(world, deck, step, exit_recorder, log);
    // 6. The start has succeeded: record it and open the metrics.
    is_starting = false;
    record_start(run, request, restored, hosts, environment);
    const std::unique_ptr<Recorder> recorder = open_recorder(world, deck, run, restored.state, log);
    report_rate_jump(run, restored, *recorder, log);
    // 7. Train.
    RunSupervisor supervisor(run, restored.state, hosts, watchdog, *recorder, log);
    TrainingLoop loop({run, folder.lease, clock, *recorder, supervisor, log}, restored);
    try {
      const ExitCode code = loop.train();
      // 8. Wait for communication, flush the metrics, write exit.json.
      end_communication(run.engine, log);
      exit_recorder.set_progress(loop.state().step, loop.newest_checkpoint());
      comm::together(world, [&] { recorder->write_remaining(); });
      exit_recorder.write(code, loop.reason());
      return code;
    } catch (const std::exception& caught) {
      const Error error = to_error(caught);
      exit_recorder.set_progress(loop.state().step, loop.newest_checkpoint());
      if (world.size() == 1 || error.thrown_on_all_ranks()) throw;
      abort_job(error, deck.run.folder, environment, exit_recorder, log);
    }
  } catch (const std::exception& caught) {
    const Error error = to_error(caught);
    if (folder.is_new && is_starting && error.code() == ExitCode::wrong_input)
      release_run_folder(folder, deck.run.folder);
    else
      exit_recorder.write(error.code(), error.what());
    throw;
  }
}

}  // namespace trireme::train
