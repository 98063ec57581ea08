#include "trireme/train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/io/file.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/train/recorder.hpp"
#include "trireme/train/restore.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/run_clock.hpp"
#include "trireme/train/stop_request.hpp"

namespace trireme::train {
namespace {

/// A loss or gradient that stays not finite for this many steps in a row is past what skipping can repair.
constexpr int nonfinite_steps_allowed = 5;

/// Whether this run's metrics have the evaluation of a split at a step. Collective.
bool recorded(const comm::Communicator& world, const std::string& run_folder, std::int64_t step, const std::string& split) {
  std::int64_t found = 0;
  comm::together(world, [&] { found = world.rank() == 0 && Recorder::has_evaluation(run_folder, step, split) ? 1 : 0; });
  return world.all_reduce(found, comm::Reduction::max) != 0;
}

/// Whether a run that stands at this step is done with everything: its stop condition, its last validation, the test. Collective.
bool nothing_left(const comm::Communicator& world, const deck::Deck& deck, std::int64_t total_steps, std::int64_t step, double elapsed_seconds) {
  const bool over = total_steps > 0 ? step >= total_steps : elapsed_seconds >= deck.run.stop.value;
  return over && (deck.data.validation.empty() || recorded(world, deck.run.folder, step, "validation")) &&
         (deck.data.test.empty() || recorded(world, deck.run.folder, step, "test"));
}

/// The number of this name that the writer of a checkpoint left in it.
std::optional<std::int64_t> whole_number(const checkpoint::Info& info, const std::string& key) {
  const auto found = info.state.find(key);
  const auto* value = found == info.state.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

/// The step at which a run that ended as done, by this very deck, has nothing left to do: seen in its newest valid checkpoint and its metrics, without
/// its data, which may be gone. None: to be found out with the data. Collective.
std::optional<std::int64_t> finished_before(const comm::Communicator& world, const deck::Deck& deck, const RestartPolicy& restart, bool ended_as_done) {
  std::int64_t worth_a_look = ended_as_done && restart.kind != RestartPolicy::Kind::none ? 1 : 0;
  world.broadcast(std::as_writable_bytes(std::span(&worth_a_look, 1)), 0);
  if (worth_a_look == 0) return std::nullopt;
  const checkpoint::Choice newest = checkpoint::find_newest(world, deck.run.folder + "/checkpoints");
  if (newest.path.empty() || !newest.rejected.empty()) return std::nullopt;
  checkpoint::Info info;
  bool same_deck = false;
  comm::together(world, [&] {
    info = checkpoint::read_contents(newest.path).info;
    same_deck = !info.deck.empty() && deck::differences(deck::parse(info.deck, newest.path + ":deck"), deck).empty();
  });
  const std::optional<std::int64_t> total_steps = whole_number(info, "total_steps");
  if (!same_deck || !total_steps || !nothing_left(world, deck, *total_steps, info.step, state_of(info).elapsed_seconds)) return std::nullopt;
  return info.step;
}

/// The best of a set that is validated on no more counts no more. Collective.
void forget_best_of_other_set(const Run& run, Restored& restored, const RestartPolicy& restart, Log& log) {
  if (!restored.state.best) return;
  const std::string path = restored.own ? run.deck.run.folder + "/checkpoints/" + checkpoint::step_file_name(restored.state.step) : restart.path;
  std::string before;
  comm::together(run.mesh.world, [&] {
    const std::string text = checkpoint::read_contents(path).info.deck;
    before = text.empty() ? run.deck.data.validation : deck::parse(text, path + ":deck").data.validation;
  });
  if (before == run.deck.data.validation) return;
  log.info("data.validation is now \"{}\": the best {} so far, on \"{}\", counts no more", run.deck.data.validation, restored.state.best_metric, before);
  restored.state.best.reset();
}

/// The loop of one start: made once everything stands, it owns what changes from step to step.
class Loop {
 public:
  Loop(Run& run, checkpoint::Lease& lease, const RunClock& clock, const Restored& restored, Recorder& recorder, Log& log)
      : run_(run),
        lease_(lease),
        clock_(clock),
        deck_(run.deck),
        state_(restored.state),
        recorder_(recorder),
        log_(log),
        schedule_(deck_.schedule, deck_.batch.global, run.layout.schedule_steps, run.layout.scale),
        evaluate_every_(deck_.evaluate.every, run.layout.scale),
        checkpoint_every_(deck_.checkpoint.every, run.layout.scale),
        monitor_every_(deck_.monitor.every, run.layout.scale),
        elapsed_before_(state_.elapsed_seconds),
        checkpointed_step_(restored.own ? state_.step : -1),
        messages_(run.mesh),
        trace_(deck_.monitor.trace ? monitor::Trace(run.mesh.world.rank(), deck_.monitor.trace->first, deck_.monitor.trace->last) : monitor::Trace()),
        finish_(run.layout.total_steps == 0 && state_.elapsed_seconds >= deck_.run.stop.value) {
    if (state_.best && state_.best_metric != deck_.checkpoint.best) {
      if (!deck_.checkpoint.best.empty()) log_.info("checkpoint.best is now {}: the best {} so far counts no more", deck_.checkpoint.best, state_.best_metric);
      state_.best.reset();
    }
    if (clock_.source() != "none") log_.info("this start ends by itself before {} ({} left)", clock_.source(), static_cast<long>(*clock_.left()));
  }

  ExitCode train() {
    if (!finished()) run_.train_loader->start(state_.cursor);
    bool stop = false;
    while (!finished() && !stop) {
      const double rate = schedule_.rate(state_.step + 1);
      const StepResult result = train_step(*run_.replica, *run_.train_loader, rate, own_wishes(), messages_, traced(state_.step + 1));
      after_step(result, rate);
      if (deck_.monitor.trace && state_.step == deck_.monitor.trace->last) write_trace();
      if (bad_in_a_row_ >= nonfinite_steps_allowed) return diverged();
      finish_ = finish_ || (result.wishes & wish_finish) != 0;
      stop = (result.wishes & wish_stop) != 0;
      if (run_.validation_loader && (finished() || evaluate_every_.due(state_.step))) evaluate_validation();
      // What went wrong in the last step may be in the weights: those of before stay the newest, until a step is right again.
      const bool due = finished() || checkpoint_every_.due(state_.step) || (result.wishes & wish_checkpoint) != 0;
      if (stop || (due && bad_in_a_row_ == 0)) write_checkpoint();
    }
    recorder_.finish();
    if (deck_.monitor.trace && deck_.monitor.trace->first <= state_.step && state_.step < deck_.monitor.trace->last) write_trace();
    if (!finished()) return stopped();
    if (bad_in_a_row_ > 0) return diverged();
    finish_what_is_missing();
    reason_ = "the stop condition of the deck is reached";
    return ExitCode::done;
  }

  const RunState& state() const { return state_; }
  const std::string& reason() const { return reason_; }
  std::string newest_checkpoint() const { return checkpointed_step_ >= 0 ? checkpoint::step_file_name(checkpointed_step_) : ""; }

 private:
  /// The same answer on every rank: times count only by way of the wishes.
  bool finished() const { return run_.layout.total_steps > 0 ? state_.step >= run_.layout.total_steps : finish_; }

  /// What this rank wants of the step about to be made. Times are world rank 0's alone.
  std::uint32_t own_wishes() {
    std::uint32_t wishes = wish_nothing;
    if (stop_signal() != 0) wishes |= wish_stop;
    if (run_.mesh.world.rank() != 0) return wishes;
    lease_.check();
    const double now = clock_.since_start();
    const double evaluation = evaluate_every_.due(state_.step + 1) ? evaluation_seconds_ : 0;
    time_is_up_ = clock_.must_stop(longest_step_seconds_ + evaluation, checkpoint_seconds_);
    if (time_is_up_) wishes |= wish_stop;
    if (now - stop_file_looked_at_ >= 0.5) {  // a stat a step would weigh on a parallel file system
      stop_file_looked_at_ = now;
      struct stat status {};
      stop_file_ = stat((deck_.run.folder + "/STOP").c_str(), &status) == 0;
    }
    if (stop_file_) wishes |= wish_stop;
    if (run_.layout.total_steps == 0 && elapsed_before_ + now >= deck_.run.stop.value) wishes |= wish_finish;
    if (checkpoint_every_.over(now - checkpointed_at_)) wishes |= wish_checkpoint;
    return wishes;
  }

  /// The trace, where this step is one of those asked for.
  monitor::Trace* traced(std::int64_t step) {
    trace_.begin(step);
    return trace_.recording() ? &trace_ : nullptr;
  }

  /// After the last traced step, or where the run ends before it: the events of all ranks in one file. That it cannot be written is no reason
  /// to stop. Collective.
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

  void after_step(const StepResult& result, double rate) {
    ++state_.step;
    state_.samples += deck_.batch.global;
    state_.cursor = run_.cutter.advance(state_.cursor);
    state_.elapsed_seconds = elapsed_before_ + clock_.since_start();
    longest_step_seconds_ = std::max(longest_step_seconds_, result.times.total);
    bad_in_a_row_ = result.applied ? 0 : bad_in_a_row_ + 1;
    recorder_.step(state_, result);
    if (!result.applied) {
      ++state_.skipped;
      recorder_.event(state_, "skipped_step", "loss or gradient is not finite: the weights did not move");
      log_.warn("step {}: loss or gradient is not finite (loss {}); the step is skipped", state_.step, result.loss);
    }
    if (monitor_every_.due(state_.step) || finished()) recorder_.train_row(state_, result, rate);
  }

  void evaluate_validation() {
    const double start = monotonic_seconds();
    const Metrics metrics = evaluate(*run_.replica, *run_.validation_loader);
    evaluation_seconds_ = std::max(evaluation_seconds_, monotonic_seconds() - start);
    recorder_.evaluation(state_, "validation", metrics);
    if (deck_.checkpoint.best.empty()) return;
    const bool higher = deck_.checkpoint.best == "top1";
    const double value = higher ? metrics.top1 : deck_.checkpoint.best == "perplexity" ? metrics.perplexity() : metrics.loss;
    if (!std::isfinite(value) || (state_.best && (higher ? value <= *state_.best : value >= *state_.best))) return;
    state_.best = value;
    state_.best_metric = deck_.checkpoint.best;
    state_.best_step = state_.step;
    best_is_new_ = true;
    if (!(finished() || checkpoint_every_.due(state_.step))) save_best_alone();
  }

  std::string checkpoint_folder() const { return deck_.run.folder + "/checkpoints"; }

  checkpoint::WriteReport write_file(const std::string& path) {
    const std::vector<checkpoint::Piece> pieces = pieces_of(*run_.replica, Rows::share, true);
    run_.mesh.world.broadcast(std::as_writable_bytes(std::span(&state_.elapsed_seconds, 1)), 0);  // a file says one time: rank 0's
    const data::DatasetInfo& set = run_.train_set.info();
    checkpoint::Info info = info_of(state_, *run_.replica, run_.deck_text, set.classes, set.identity, deck_.run.seed);
    info.state["total_steps"] = run_.layout.total_steps;
    if (run_.replica->options().tokens()) info.state["vocabulary"] = run_.replica->options().classes;
    if (!set.tokenizer.empty()) info.state["tokenizer"] = set.tokenizer;
    run_.engine.quiesce();
    return checkpoint::write(run_.mesh.world, path, pieces, info);
  }

  void save_best_alone() {
    write_file(checkpoint_folder() + "/best.h5");
    best_is_new_ = false;
  }

  void write_checkpoint() {
    const std::string name = checkpoint::step_file_name(state_.step), path = checkpoint_folder() + "/" + name;
    if (checkpointed_step_ == state_.step) {
      if (best_is_new_) link_best(path);
      return;
    }
    const double start = monotonic_seconds();
    const checkpoint::WriteReport report = write_file(path);
    checkpointed_step_ = state_.step;
    if (best_is_new_) link_best(path);
    checkpoint::rotate(run_.mesh.world, checkpoint_folder(), deck_.checkpoint.keep, name);
    checkpoint_seconds_ = std::max(checkpoint_seconds_, monotonic_seconds() - start);
    checkpointed_at_ = clock_.since_start();
    recorder_.checkpoint(state_, "checkpoints/" + name, report.bytes, monotonic_seconds() - start);
  }

  /// The step's file is the best one too: a second name for the same bytes, put in place by a rename.
  void link_best(const std::string& path) {
    best_is_new_ = false;
    comm::together(run_.mesh.world, [&] {
      if (run_.mesh.world.rank() != 0) return;
      const std::string best = checkpoint_folder() + "/best.h5", fresh = best + ".tmp";
      unlink(fresh.c_str());
      ensure(link(path.c_str(), fresh.c_str()) == 0, "{}: cannot be linked to {}", fresh, path);
      io::rename_durably(fresh, best);
    });
  }

  /// At the stop condition: the last validation, the last checkpoint and the one look at the test set, each only where it is not there yet.
  void finish_what_is_missing() {
    if (run_.validation_loader && !recorded(run_.mesh.world, deck_.run.folder, state_.step, "validation")) evaluate_validation();
    write_checkpoint();
    if (run_.test_loader && !recorded(run_.mesh.world, deck_.run.folder, state_.step, "test")) recorder_.evaluation(state_, "test", evaluate(*run_.replica, *run_.test_loader));
  }

  ExitCode stopped() {
    reason_ = stop_signal() != 0 ? signal_name(stop_signal()) : stop_file_ ? "STOP file" : time_is_up_ ? clock_.source() : "a signal at another rank";
    recorder_.event(state_, "stopped", reason_);
    log_.info("stopped at step {} ({}); submit the same command again to go on", state_.step, reason_);
    return ExitCode::stopped_early;
  }

  ExitCode diverged() {
    recorder_.finish();
    reason_ = fmt::format("loss or gradient not finite in {} steps in a row", bad_in_a_row_);
    recorder_.event(state_, "diverged", reason_);
    log_.warn("diverged at step {}: {}; a lower rate, a longer warm-up or clip_norm may help", state_.step, reason_);
    return ExitCode::diverged;
  }

  Run& run_;
  checkpoint::Lease& lease_;
  const RunClock& clock_;
  const deck::Deck& deck_;
  RunState state_;
  Recorder& recorder_;
  Log& log_;
  optim::Schedule schedule_;
  Interval evaluate_every_, checkpoint_every_, monitor_every_;
  double elapsed_before_;
  std::int64_t checkpointed_step_;  ///< of the newest checkpoint in the run's folder; -1: none
  StepMessages messages_;
  monitor::Trace trace_;
  bool finish_;  ///< run.stop is a time, and it is over
  double longest_step_seconds_ = 0, checkpoint_seconds_ = 0, evaluation_seconds_ = 0;
  double checkpointed_at_ = 0, stop_file_looked_at_ = -1;
  bool stop_file_ = false, time_is_up_ = false, best_is_new_ = false;
  int bad_in_a_row_ = 0;
  std::string reason_;
};

}  // namespace

ExitCode train(const TrainRequest& request, comm::Environment& environment, comm::Engine& engine, Log& log) {
  install_stop_signals();  // from here on a signal is a wish to stop, also while data are opened and weights read
  const comm::Communicator& world = environment.world();
  const deck::Deck& deck = request.deck;
  const bool lead = world.rank() == 0;
  const RunClock clock = lead ? RunClock(deck.run) : RunClock();
  checkpoint::ExitRecord record;
  record.start = utc_timestamp();
  HeldFolder folder = take_folder(deck, environment, log);
  bool wrong_start = true;  // until everything stands: a mistake found so far leaves no folder that was not there
  // World rank 0's, or that of a rank whose error ends the job before rank 0 hears of it.
  const auto leave_record = [&](ExitCode code, const std::string& reason, bool alone = false) {
    if (!lead && !alone) return;
    record.code = code;
    record.reason = reason;
    try {
      checkpoint::write_exit_record(deck.run.folder, record);
    } catch (const std::exception& error) {  // a full disk must not keep this rank from leaving
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
      leave_record(ExitCode::done, "the stop condition of the deck was reached before; nothing to do");
      log.info("the stop condition is reached and everything is recorded: nothing to do");
      return ExitCode::done;
    };
    if (const std::optional<std::int64_t> step = finished_before(world, deck, request.restart, folder.ended_as_done)) return nothing_to_do(*step);
    Run run(deck, environment, engine, log);
    Restored restored = restore(run, request.restart, log);
    forget_best_of_other_set(run, restored, request.restart, log);
    record.step = restored.state.step;
    if (restored.own) record.checkpoint = checkpoint::step_file_name(restored.state.step);
    if (restored.own && nothing_left(world, deck, run.layout.total_steps, restored.state.step, restored.state.elapsed_seconds)) return nothing_to_do(restored.state.step);
    wrong_start = false;
    run.record_start(environment);
    std::unique_ptr<Recorder> recorder;
    comm::together(world, [&] {
      recorder = std::make_unique<Recorder>(Recorder::Options{.run_folder = deck.run.folder,
                                                              .records = lead,
                                                              .tensorboard = deck.monitor.tensorboard,
                                                              .every_steps = run.progress_steps(),
                                                              .total_steps = run.layout.total_steps,
                                                              .global = deck.batch.global,
                                                              .samples_per_epoch = run.layout.samples_per_epoch,
                                                              .tokens_per_sample = run.layout.scale.tokens_per_sample,
                                                              .memory_bytes = run.plan.total(),
                                                              .fresh = restored.state.step == 0},
                                            log);
      if (restored.state.step > 0) recorder->event(restored.state, "restart", fmt::format("goes on from step {}", restored.state.step));
    });

    Loop loop(run, folder.lease, clock, restored, *recorder, log);
    try {
      const ExitCode code = loop.train();
      run.engine.quiesce();  // weights of the last update may still be gathered into the replica's memory
      record.step = loop.state().step;
      record.checkpoint = loop.newest_checkpoint();
      leave_record(code, loop.reason());
      return code;
    } catch (const std::exception& error) {
      // One rank's alone: the others wait in a collective call, and the engine may still work on this rank's buffers. Out from here, with everything alive.
      const auto* known = dynamic_cast<const Error*>(&error);
      record.step = loop.state().step;
      record.checkpoint = loop.newest_checkpoint();
      if (world.size() == 1 || (known != nullptr && known->agreed())) throw;
      leave_record(code_of(error), error.what(), true);
      log.error("rank {} on {}: {}", world.rank(), environment.host(), error.what());
      log.flush();
      environment.abort(code_of(error));
    }
  } catch (const std::exception& error) {
    if (folder.made && wrong_start && code_of(error) == ExitCode::wrong_input) leave_folder(folder, deck.run.folder);
    else leave_record(code_of(error), error.what());
    throw;
  }
}

}  // namespace trireme::train
