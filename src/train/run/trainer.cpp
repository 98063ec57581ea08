// SPDX-License-Identifier: Apache-2.0
//
// train(): one start of a run, from signal handlers to exit.json.
//
// A start checks whether the run is already complete, prepares the run, restores a checkpoint and
// runs the training loop (training_loop.cpp). With batch.ramp it does this for one row after the
// other: a row ends with a checkpoint, from which the next row begins in the same process.
// ExitRecorder writes how the start ended. Called by `trireme train`. evaluate_checkpoint() is in
// evaluation.cpp.
#include "trireme/train/run/trainer.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "restore.hpp"
#include "stop_request.hpp"
#include "train/records/recorder.hpp"
#include "train/records/start_record.hpp"
#include "train/supervision/fault_injector.hpp"
#include "train/supervision/report_signal.hpp"
#include "train/supervision/run_supervisor.hpp"
#include "train/supervision/watchdog.hpp"
#include "training_loop.hpp"
#include "trireme/base/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/train/model_flops.hpp"
#include "trireme/train/run/held_run_folder.hpp"
#include "trireme/train/run/job_time.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/run_clock.hpp"

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
  const checkpoint::CheckpointChoice& newest = found.newest.emplace(
      checkpoint::find_newest(world, monitor::RunFolder(deck.run.folder).checkpoints()));
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

/// Resets the best value, and that of the plateau, if they were measured on another validation set
/// than that of this run.
void reset_incomparable_best(const Run& run, RestoredRun& restored, Log& log) {
  RunState& state = restored.state;
  const std::string& now = run.deck.data.validation;
  if (!restored.deck || restored.deck->data.validation == now) return;
  if (state.plateau.best)
    log.info("data.validation is now \"{}\": best {} of the plateau reset", now,
             state.plateau.metric);
  state.plateau.forget_best();
  if (state.best)
    log.info("data.validation is now \"{}\": best {} reset, it was measured on \"{}\"", now,
             state.best_metric, restored.deck->data.validation);
  state.best.reset();
}

/// Writes the event of a restart. Reports a deck that changes the learning rate of the next step by
/// more than a factor of 2: the loss may jump too. Collective.
void report_restart(const Run& run, const RestoredRun& restored, Recorder& recorder, Log& log) {
  const RunState& state = restored.state;
  if (state.step == 0) return;
  comm::together(run.mesh.world, [&] {
    recorder.event(state, "restart", fmt::format("resumed from step {}", state.step));
  });
  if (!restored.deck) return;
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

/// Writes the event of a row of batch.ramp, when it begins and at a restart. Collective.
void report_row(const Run& run, const RunState& state, Recorder& recorder, Log& log) {
  if (run.layout.scale.rows.empty() || state.step == 0) return;
  const std::string detail = fmt::format(
      "{} a step from step {}", counted(run.layout.global, "sample", "samples"), state.step + 1);
  comm::together(run.mesh.world, [&] { recorder.event(state, "batch", detail); });
  log.info("batch.ramp: {}", detail);
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

  /// Notes the step that the run has reached.
  void set_step(std::int64_t step) { record_.step = step; }
  /// From now on exit.json is written only while this job holds the lease, which must live until
  /// the last write.
  void set_lease(const checkpoint::Lease* lease) { lease_ = lease; }
  bool may_write() const { return lease_ == nullptr || lease_->confirm(); }

  /// Writes exit.json on world rank 0. A failed write is logged as a warning.
  void write(ExitCode code, const std::string& reason) {
    if (writes_) write_on_this_rank(code, reason);
  }

  /// Writes exit.json on any rank: for an error of this rank that ends the job.
  void write_on_this_rank(ExitCode code, const std::string& reason) {
    record_.code = code;
    record_.reason = reason;
    try {
      if (!may_write()) return;
      checkpoint::write_exit_record(run_folder_, record_);
    } catch (const std::exception& error) {  // A full disk must not prevent the exit.
      log_.warn("{}", error.what());
    }
  }

 private:
  std::string run_folder_;
  bool writes_;
  Log& log_;
  const checkpoint::Lease* lease_ = nullptr;
  checkpoint::ExitRecord record_;
};

/// Ends a start that finds the run complete at `step`: writes exit.json and returns the exit code.
ExitCode end_complete_run(const comm::Communicator& world, const deck::Deck& deck,
                          std::int64_t step, ExitRecorder& exit_recorder, Log& log) {
  exit_recorder.set_step(step);
  exit_recorder.write(ExitCode::done,
                      "the stop condition of the deck was reached before; nothing to do");
  checkpoint::clear_attempts(world, deck.run.folder);
  log.info("the stop condition is reached and everything is recorded: nothing to do");
  return ExitCode::done;
}

Watchdog::Options watchdog_options(const deck::Deck& deck, const ExitRecorder& exit_recorder) {
  Watchdog::Options options{deck.run.folder, exit_recorder.start_time(), std::nullopt,
                            [&exit_recorder] { return exit_recorder.may_write(); }};
  if (deck.health.watchdog) options.min_deadline_seconds = deck.health.watchdog->value;
  return options;
}

/// Opens the metrics of a run. World rank 0 counts its model FLOPs and predicts it. Collective.
std::unique_ptr<Recorder> open_recorder(const comm::Communicator& world,
                                        const TrainRequest& request, const Run& run,
                                        const RunState& state, const checkpoint::Lease& lease,
                                        const StartFacts& facts, monitor::Prometheus* prometheus,
                                        Log& log) {
  const deck::Deck& deck = request.deck;
  double flops_per_rank = 0;
  MachinePrediction prediction;
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    flops_per_rank = model_flops_of_a_sample(run.replica->options()) *
                     static_cast<double>(run.layout.global) / world.size();
    if (request.predictor) prediction = request.predictor(run);
  });
  std::unique_ptr<Recorder> recorder;
  comm::together(world, [&] {
    recorder = std::make_unique<Recorder>(Recorder::Options{.run_folder = deck.run.folder,
                                                            .is_recorder = world.rank() == 0,
                                                            .tensorboard = deck.monitor.tensorboard,
                                                            .prometheus = prometheus,
                                                            .every_steps = run.progress_steps(),
                                                            .total_steps = run.layout.total_steps,
                                                            .scale = run.layout.scale,
                                                            .memory_bytes = run.plan.total(),
                                                            .answer = &deck::answer_of(deck),
                                                            .averages = deck.optimizer.ema > 0,
                                                            .fresh = state.step == 0,
                                                            .epoch = state.cursor.epoch,
                                                            .decode = deck.data.decode,
                                                            .device = run.device,
                                                            .flops_per_rank = flops_per_rank,
                                                            .prediction = prediction,
                                                            .account = request.account,
                                                            .start = facts,
                                                            .lease = &lease},
                                          log);
  });
  return recorder;
}

/// Waits for communication after the last step: gathers of the last update may still write to the
/// replica's memory. Then enters a phase: "end", or "row" if another row of batch.ramp follows.
/// Logs the pinned memory that communication took.
void end_communication(comm::Engine& engine, const char* phase, Log& log) {
  engine.quiesce();
  enter_phase(phase);
  if (const std::size_t bytes = engine.staging_bytes(); bytes > 0)
    log.info("pinned host memory for communication, not in the memory plan: {}",
             format_bytes(bytes));
}

/// Writes exit.json and ends the job after an error of this rank alone.
///
/// The other ranks wait in a collective call, and the engine may still use this rank's buffers. So
/// the job ends here, before any destructor runs.
[[noreturn]] void abort_job(const Error& error, const monitor::RunFolder& folder,
                            comm::Environment& environment, ExitRecorder& exit_recorder, Log& log) {
  exit_recorder.write_on_this_rank(error.code(), error.what());
  try {
    // Only rank 0 has the file open. Both append whole lines.
    if (environment.world().rank() != 0 && exit_recorder.may_write()) log.open_file(folder.log());
  } catch (const std::exception& caught) {
    log.warn("{}", caught.what());
  }
  log.error("rank {} on {}: {}", environment.world().rank(), environment.host(), error.what());
  log.flush();
  environment.abort(error.code());
}

/// The rows of batch.ramp that one start trains, one after the other. Without a ramp the whole run
/// is one row.
class RowSequence {
 public:
  /// The objects of this start that all rows use. All of them outlive this object.
  struct Parts {
    const TrainRequest& request;
    comm::Environment& environment;
    comm::Engine& engine;
    HeldRunFolder& folder;
    const RunClock& clock;
    Watchdog& watchdog;
    ExitRecorder& exit_recorder;
    Log& log;
  };
  explicit RowSequence(const Parts& parts)
      : start_(parts),
        hosts_(gather_hosts(parts.environment)),
        faults_(parts.request.deck.debug.faults, parts.environment.world().rank()),
        facts_(facts_of_start(parts)),
        trace_(parts.environment.world().rank(), parts.request.deck.monitor.trace) {}

  /// Trains until the run ends, and returns its exit code. `newest`: the newest checkpoint, if it
  /// was searched. Keeps the run folder once the start has succeeded.
  ExitCode train(std::optional<checkpoint::CheckpointChoice> newest) {
    const comm::Communicator& world = start_.environment.world();
    if (!deck().batch.ramp.empty() && !newest &&
        start_.request.restart.kind != RestartPolicy::Kind::none)
      newest = checkpoint::find_newest(world, monitor::RunFolder(deck().run.folder).checkpoints());
    if (newest && !newest->path.empty())
      step_ = std::clamp(newest->contents.info.step, std::int64_t{0}, max_step);
    while (true) {
      if (const std::optional<ExitCode> code = train_row(newest)) return *code;
      newest.reset();
    }
  }

 private:
  const deck::Deck& deck() const { return start_.request.deck; }

  /// Returns what rank 0 records of the time before this start. Asks the batch system.
  StartFacts facts_of_start(const Parts& parts) const {
    if (parts.environment.world().rank() != 0) return {};
    const std::set<std::string> nodes(hosts_.begin(), hosts_.end());
    const std::vector<BatchJob> jobs = batch_jobs();
    const std::optional<double> left = parts.clock.seconds_left();
    const std::string job = jobs.empty() ? "" : jobs.front().text();
    return {.job = job,
            .job_start = query_job_start(jobs),
            .previous = parts.folder.previous_end.times,
            .nodes = std::ssize(nodes),
            .time_limit = left ? std::optional(wall_seconds() + *left) : std::nullopt,
            .previous_job = previous_job_energy(monitor::RunFolder(deck().run.folder), job),
            .has_whole_nodes = has_whole_node(jobs)};
  }

  /// Trains the row of the step after step_. Returns the exit code, or nothing if the run goes on
  /// with the row of step_.
  std::optional<ExitCode> train_row(const std::optional<checkpoint::CheckpointChoice>& newest) {
    const auto& [request, environment, engine, folder, clock, watchdog, exit_recorder, log] =
        start_;
    const comm::Communicator& world = environment.world();
    // 1. Prepare the run: datasets, layout, memory. Load a checkpoint or initial weights.
    enter_phase("inputs");
    Run run(deck(), environment, engine, log, step_);
    enter_phase("restore");
    const RestartPolicy same_run{.kind = RestartPolicy::Kind::required, .path = {}};
    RestoredRun restored = restore(run, previous_row_ ? same_run : request.restart, newest, log);
    if (restored.is_of_other_row) {
      // The checkpoint is of --restart PATH, or an older one, because the newest ended several
      // starts. Begin again with its row.
      step_ = restored.state.step;
      end_communication(engine, "row", log);
      return std::nullopt;
    }
    if (previous_row_) {
      // Equal to the state in the checkpoint, except after a rollback to an earlier row: that keeps
      // the position in the data.
      comm::together(world, [&] {
        ensure(restored.state.step == previous_row_->state.step,
               "{}: holds step {}, but the row of batch.ramp before ended at step {}",
               restored.path, restored.state.step, previous_row_->state.step);
      });
      restored.state = previous_row_->state;
      // Each rank has measured its own time. Decisions need one that is equal on all ranks.
      world.broadcast(std::as_writable_bytes(std::span(&restored.state.elapsed_seconds, 1)), 0);
      watchdog.scale_steps(static_cast<double>(run.layout.global) /
                           static_cast<double>(previous_row_->samples_per_step));
    } else {
      reset_incomparable_best(run, restored, log);
    }
    const std::int64_t step = restored.state.step;
    exit_recorder.set_step(step);
    if (!previous_row_ && restored.from_own_folder &&
        is_complete(world, deck(), run.layout.total_steps, step, restored.state.elapsed_seconds))
      return end_complete_run(world, deck(), step, exit_recorder, log);
    // 2. The start has succeeded: record it and open the metrics.
    enter_phase("allocate");
    folder.keep();
    if (!previous_row_ && request.account != nullptr)
      facts_.elapsed_at_launch =
          restored.state.elapsed_seconds + clock.since_start() - request.account->total();
    if (!previous_row_) record_start(run, request, restored, hosts_, environment, log);
    if (!prometheus_ && world.rank() == 0 && !deck().monitor.prometheus.empty())
      prometheus_ = std::make_unique<monitor::Prometheus>(deck().monitor.prometheus,
                                                          deck().run.name, facts_.job);
    const std::unique_ptr<Recorder> recorder = open_recorder(
        world, request, run, restored.state, folder.lease, facts_, prometheus_.get(), log);
    comm::together(world, [&] { recorder->account(restored.state, false); });
    if (!previous_row_) report_restart(run, restored, *recorder, log);
    report_row(run, restored.state, *recorder, log);
    // 3. Train.
    if (!sensors_) sensors_ = make_sensors(world, run.device);
    RunSupervisor supervisor(run, restored.state, hosts_, *sensors_, watchdog, faults_, *recorder,
                             log);
    TrainingLoop loop({run, folder.lease, clock, *recorder, supervisor, trace_, log}, restored,
                      previous_row_
                          ? previous_row_->progress
                          : StartProgress{.elapsed_before = restored.state.elapsed_seconds});
    try {
      const std::optional<ExitCode> code = loop.train();
      // 4. Wait for communication, flush the metrics, write exit.json.
      supervisor.end_run(loop.state());
      end_communication(run.engine, code ? "end" : "row", log);
      watchdog.wait_if_lost();
      exit_recorder.set_step(loop.state().step);
      comm::together(world, [&] {
        if (world.rank() == 0 && !folder.lease.confirm()) folder.lease.check();
        recorder->account(loop.state(), code.has_value());
        recorder->write_remaining(loop.state());
      });
      recorder->compare_prediction();
      if (code) exit_recorder.write(*code, loop.reason());
      previous_row_ = {loop.state(), loop.progress(), run.layout.global};
      step_ = loop.state().step;
      return code;
    } catch (const std::exception& caught) {
      const Error error = to_error(caught);
      watchdog.wait_if_lost();
      exit_recorder.set_step(loop.state().step);
      try {
        recorder->account(loop.state(), true);
      } catch (const std::exception& another) {
        log.warn("{}", another.what());
      }
      // Without the lease no destructor may run: it would remove files of the other job.
      if ((world.size() == 1 || error.thrown_on_all_ranks()) && folder.lease.is_held()) throw;
      abort_job(error, run.folder(), environment, exit_recorder, log);
    }
  }

  /// Makes the sensors of this rank. Collective.
  std::unique_ptr<RankSensors> make_sensors(const comm::Communicator& world, Device device) const {
    std::string identity;
    comm::together(world, [&] { identity = identity_of(device); });
    const std::vector<std::string> devices = world.all_gather(identity);
    const auto is_first = [&](const std::vector<std::string>& owners) {
      const auto rank = static_cast<std::size_t>(world.rank());
      return std::find(owners.begin(), owners.end(), owners[rank]) ==
             owners.begin() + static_cast<std::ptrdiff_t>(rank);
    };
    return std::make_unique<RankSensors>(
        device, is_first(devices), is_first(hosts_) ? std::optional(HostEnergy()) : std::nullopt);
  }

  /// The state in which a row ends and the next one begins.
  struct EndedRow {
    RunState state;
    StartProgress progress;
    std::int64_t samples_per_step = 1;
  };

  Parts start_;
  std::vector<std::string> hosts_;
  FaultInjector faults_;
  StartFacts facts_;
  std::unique_ptr<RankSensors> sensors_;
  std::unique_ptr<monitor::Prometheus> prometheus_;
  monitor::Trace trace_;
  std::int64_t step_ = 0;  ///< The steps that are done before the row to be trained.
  std::optional<EndedRow> previous_row_;
};

}  // namespace

ExitCode train(const TrainRequest& request, comm::Environment& environment, comm::Engine& engine,
               Log& log) {
  // 1. From here on a signal asks for a stop or for a report, also while datasets are opened and
  //    weights are read.
  install_stop_signals();
  install_report_signal();
  const comm::Communicator& world = environment.world();
  const deck::Deck& deck = request.deck;
  const monitor::RunFolder files(deck.run.folder);
  // 2. Start the clock, prepare the exit record and acquire the run folder.
  const RunClock clock = world.rank() == 0 ? RunClock(deck.run) : RunClock();
  ExitRecorder exit_recorder(deck.run.folder, world.rank() == 0, log);
  HeldRunFolder folder = acquire_run_folder(deck, environment, log);
  exit_recorder.set_lease(&folder.lease);
  try {
    // 3. Return at once if an earlier start has done everything.
    const FolderState found =
        inspect_folder(world, deck, request.restart, folder.previous_end.is_done);
    if (found.finished_step)
      return end_complete_run(world, deck, *found.finished_step, exit_recorder, log);
    check_writable(world, files.checkpoints());
    // 4. Start the watchdog.
    Watchdog watchdog(watchdog_options(deck, exit_recorder), environment, engine, log);
    // 5. Train, with batch.ramp row by row.
    RowSequence rows({request, environment, engine, folder, clock, watchdog, exit_recorder, log});
    return rows.train(found.newest);
  } catch (const std::exception& caught) {
    const Error error = to_error(caught);
    if (folder.is_new && folder.is_starting && error.code() == ExitCode::wrong_input) {
      release_run_folder(folder, files);
    } else {
      folder.new_folders.keep();
      exit_recorder.write(error.code(), error.what());
    }
    throw;
  }
}

}  // namespace trireme::train
