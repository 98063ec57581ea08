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
#include "trireme/train/guard.hpp"
#include "trireme/train/recorder.hpp"
#include "trireme/train/restore.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/run_clock.hpp"
#include "trireme/train/stop_request.hpp"

namespace trireme::train {
namespace {

/// Whether this run's metrics have the evaluation of a split at a step. Collective.
bool recorded(const comm::Communicator& world, const std::string& run_folder, std::int64_t step,
              const std::string& split) {
  std::int64_t found = 0;
  comm::together(world, [&] {
    found = world.rank() == 0 && Recorder::has_evaluation(run_folder, step, split) ? 1 : 0;
  });
  return world.all_reduce(found, comm::Reduction::max) != 0;
}

/// Whether a run that stands at this step is done with everything: its stop condition, its last
/// validation, the test. Collective.
bool nothing_left(const comm::Communicator& world, const deck::Deck& deck, std::int64_t total_steps,
                  std::int64_t step, double elapsed_seconds) {
  const bool over = total_steps > 0 ? step >= total_steps : elapsed_seconds >= deck.run.stop.value;
  return over &&
         (deck.data.validation.empty() || recorded(world, deck.run.folder, step, "validation")) &&
         (deck.data.test.empty() || recorded(world, deck.run.folder, step, "test"));
}

/// The number of this name that the writer of a checkpoint left in it.
std::optional<std::int64_t> whole_number(const checkpoint::Info& info, const std::string& key) {
  const auto found = info.state.find(key);
  const auto* value =
      found == info.state.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

/// What a start sees in its folder before it looks for its data, which may be gone.
struct FirstLook {
  std::optional<checkpoint::CheckpointChoice>
      newest;                               ///< every byte of it was read; none: not looked for
  std::optional<std::int64_t> finished_at;  ///< the step at which there is nothing left to do;
                                            ///< none: to be found out with the data
};

/// Of a run that ended as done: whether by this very deck it has nothing left to do, seen in its
/// newest valid checkpoint and its metrics. Collective.
FirstLook look_at_folder(const comm::Communicator& world, const deck::Deck& deck,
                         const RestartPolicy& restart, bool ended_as_done) {
  FirstLook look;
  std::int64_t worth_a_look = ended_as_done && restart.kind != RestartPolicy::Kind::none ? 1 : 0;
  world.broadcast(std::as_writable_bytes(std::span(&worth_a_look, 1)), 0);
  if (worth_a_look == 0) return look;
  const checkpoint::CheckpointChoice& newest =
      look.newest.emplace(checkpoint::find_newest(world, deck.run.folder + "/checkpoints"));
  if (newest.path.empty() || !newest.rejected.empty()) return look;
  const checkpoint::Info& info = newest.contents.info;
  const bool same_deck =
      !info.deck.empty() &&
      deck::differences(deck::parse(info.deck, newest.path + ":deck"), deck).empty();
  const std::optional<std::int64_t> total_steps = whole_number(info, "total_steps");
  if (same_deck && total_steps &&
      nothing_left(world, deck, *total_steps, info.step, state_of(info).elapsed_seconds))
    look.finished_at = info.step;
  return look;
}

/// The best of a set that is validated on no more counts no more.
void forget_best_of_other_set(const Run& run, Restored& restored, Log& log) {
  if (!restored.state.best || restored.deck.empty()) return;
  const std::string before = deck::parse(restored.deck, "the checkpoint's deck").data.validation;
  if (before == run.deck.data.validation) return;
  log.info("data.validation is now \"{}\": the best {} so far, on \"{}\", counts no more",
           run.deck.data.validation, restored.state.best_metric, before);
  restored.state.best.reset();
}

/// The loop of one start: made once everything stands, it owns what changes from step to step.
class Loop {
 public:
  Loop(Run& run, checkpoint::Lease& lease, const RunClock& clock, const Restored& restored,
       Recorder& recorder, Guard& guard, Log& log)
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
        saver_(run, state_, restored.own ? state_.step : -1, recorder, log),
        algorithms_(run.mesh.world, deck_.run.folder, run.replica->context().algorithms(), log),
        trace_(deck_.monitor.trace
                   ? monitor::Trace(run.mesh.world.rank(), deck_.monitor.trace->first,
                                    deck_.monitor.trace->last)
                   : monitor::Trace()),
        finish_(run.layout.total_steps == 0 && state_.elapsed_seconds >= deck_.run.stop.value) {
    if (state_.best && state_.best_metric != deck_.checkpoint.best) {
      if (!deck_.checkpoint.best.empty())
        log_.info("checkpoint.best is now {}: the best {} so far counts no more",
                  deck_.checkpoint.best, state_.best_metric);
      state_.best.reset();
    }
    if (const std::optional<double> left = clock_.left()) {
      log_.info("this start ends by itself before {} ({} s left)", clock_.source(),
                std::max(0L, static_cast<long>(*left)));
      if (clock_.must_stop(0, 0))
        log_.warn(
            "that is no more than run.walltime_margin ({} s): this start makes one step and ends; "
            "give it more time, or lower the margin",
            static_cast<long>(deck_.run.walltime_margin.value));
    } else if (!clock_.silent_job().empty()) {
      log_.info(
          "{} does not say how long it may run: if it has a limit, give run.walltime, so that a "
          "checkpoint is written before it",
          clock_.silent_job());
    }
  }

  ExitCode train() {
    if (!finished()) run_.train_loader->start(state_.cursor);
    if (run_.replica->average() != nullptr)
      run_.replica->average()->anchor(run_.replica->context());
    bool stop = false;
    while (!finished() && !stop) {
      const std::int64_t step = state_.step + steps_.under_way() + 1;
      const StepRequest request{
          .rate = schedule_.rate(step),
          .wishes = own_wishes(step),
          .averages = run_.replica->average() != nullptr && common_step(step) == step,
          .loss_limit = loss_limit()};
      guard_.step_begins(step, saver_.newest());
      steps_.begin(request, traced(step));
      // Where nothing is to be done at its end, a step may be ended while the next one is under
      // way.
      bool past_repair = end_steps(steps_.overlap() && !has_an_end(step) ? 1 : 0);
      if (wanted_.any() || past_repair) past_repair = end_steps(0) || past_repair;
      if (past_repair) {
        if (!roll_back("the last steps were not applied", false)) return diverged();
        continue;
      }
      if (steps_.under_way() > 0 || common_step(step) > step) continue;
      const Wanted wanted = std::exchange(wanted_, {});
      finish_ = finish_ || (wanted.wishes & wish_finish) != 0;
      stop = (wanted.wishes & wish_stop) != 0;
      // What went wrong in the last step may be in the weights: those of before stay the newest,
      // until a step is right again.
      const bool saves =
          stop || ((finished() || wanted.checkpoint || (wanted.wishes & wish_checkpoint) != 0) &&
                   !last_is_bad());
      if (saves || wanted.evaluation ||
          guard_.compares(step)) {  // what is saved is the same on all replicas
        if (const std::string differing = guard_.differing_replicas(); !differing.empty()) {
          if (!roll_back(differing, true)) return corrupted(differing);
          stop = false;
          continue;
        }
      }
      if (run_.validation_loader && (finished() || wanted.evaluation)) evaluate_validation(saves);
      if (saves) write_checkpoint(stop || finished());
    }
    recorder_.finish();
    tell_of_graphs();
    if (deck_.monitor.trace && deck_.monitor.trace->first <= state_.step &&
        state_.step < deck_.monitor.trace->last)
      write_trace();
    if (!finished()) return stopped();
    if (last_is_bad()) {
      saver_.settle(state_);
      return diverged();
    }
    finish_what_is_missing();
    checkpoint::clear_attempts(run_.mesh.world, deck_.run.folder);
    reason_ = "the stop condition of the deck is reached";
    return ExitCode::done;
  }

  const RunState& state() const { return state_; }
  const std::string& reason() const { return reason_; }
  std::string newest_checkpoint() const {
    return saver_.newest() >= 0 ? checkpoint::step_file_name(saver_.newest()) : "";
  }

 private:
  /// What became due since the replicas were last the same.
  struct Wanted {
    std::uint64_t wishes = wish_nothing;
    bool evaluation = false, checkpoint = false;
    bool any() const { return wishes != wish_nothing || evaluation || checkpoint; }
  };

  /// The first step from `step` on at whose end all replicas are the same: only there is one state
  /// to evaluate, to save and to stop with.
  std::int64_t common_step(std::int64_t step) const {
    const std::int64_t every = deck_.parallel.sync_every, next = (step + every - 1) / every * every,
                       last = run_.layout.total_steps;
    return step <= last ? std::min(next, last) : next;
  }

  /// The same answer on every rank: times count only by way of the wishes.
  bool finished() const {
    return run_.layout.total_steps > 0 ? state_.step >= run_.layout.total_steps : finish_;
  }

  /// Of the step about to be begun: by the losses of all steps before it, where steps overlap of
  /// all but the last.
  double loss_limit() const {
    const Health& health = guard_.health();
    return steps_.overlap() && steps_.under_way() == 0 ? health.loss_limit_before()
                                                       : health.loss_limit();
  }

  /// Whether something is to be done at the end of this step, before the next one is begun, that
  /// does not depend on what comes of it.
  bool has_an_end(std::int64_t step) const {
    return step == run_.layout.total_steps || evaluate_every_.due(step) ||
           checkpoint_every_.due(step) || guard_.compares(step) ||
           (deck_.monitor.trace && step == deck_.monitor.trace->last);
  }

  /// Ends the steps under way but for the last `but`. Whether health was past repair after one of
  /// them.
  bool end_steps(int but) {
    bool past_repair = false;
    while (steps_.under_way() > but) {
      const StepResult result = steps_.end();
      after_step(result, schedule_.rate(state_.step + 1));
      if (result.applied && !std::exchange(made_a_step_, true))
        checkpoint::clear_attempts(run_.mesh.world, deck_.run.folder);
      saver_.advance(state_, (result.wishes & wish_saving) != 0);
      if (deck_.monitor.trace && state_.step == deck_.monitor.trace->last) write_trace();
      wanted_.wishes |= result.wishes & ~static_cast<std::uint64_t>(wish_saving);
      wanted_.evaluation = wanted_.evaluation || evaluate_every_.due(state_.step);
      wanted_.checkpoint = wanted_.checkpoint || checkpoint_every_.due(state_.step);
      past_repair = past_repair || guard_.health().past_repair();
    }
    return past_repair;
  }

  /// What this rank wants of the step about to be made. Times are world rank 0's alone.
  std::uint32_t own_wishes(std::int64_t step) {
    std::uint32_t wishes = wish_nothing;
    if (stop_signal() != 0) wishes |= wish_stop;
    if (saver_.busy()) wishes |= wish_saving;
    if (run_.mesh.world.rank() != 0) return wishes;
    lease_.check();
    const double now = clock_.since_start();
    // The wish of the step after this one is granted at its common step (steps that overlap: one
    // later), by which an evaluation may be due.
    const double steps =
        static_cast<double>(common_step(step + 1) - step + (steps_.overlap() ? 1 : 0));
    const double evaluation =
        evaluate_every_.due(step) || deck_.parallel.sync_every > 1 ? evaluation_seconds_ : 0;
    time_is_up_ =
        clock_.must_stop(steps * longest_step_seconds_ + evaluation, saver_.longest_seconds());
    if (time_is_up_) wishes |= wish_stop;
    if (now - stop_file_looked_at_ >= 0.5) {  // a stat a step would weigh on a parallel file system
      stop_file_looked_at_ = now;
      struct stat status{};
      stop_file_ = stat((deck_.run.folder + "/STOP").c_str(), &status) == 0;
    }
    if (stop_file_) wishes |= wish_stop;
    if (run_.layout.total_steps == 0 && elapsed_before_ + now >= deck_.run.stop.value)
      wishes |= wish_finish;
    if (checkpoint_every_.over(now - checkpointed_at_)) wishes |= wish_checkpoint;
    return wishes;
  }

  /// The trace, where this step is one of those asked for.
  monitor::Trace* traced(std::int64_t step) {
    trace_.begin_step(step);
    return trace_.is_recording() ? &trace_ : nullptr;
  }

  /// After the last traced step, or where the run ends before it: the events of all ranks in one
  /// file. That it cannot be written is no reason to stop. Collective.
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
    if (!result.applied) ++state_.skipped;
    recorder_.step(state_, result);
    const bool row = monitor_every_.due(state_.step) || finished();
    guard_.step_done(state_, result, steps_.messages(), row);
    if (row) recorder_.train_row(state_, result, rate);
  }

  void tell_of_graphs() const {
    const LaunchGraphs& graphs = run_.replica->graphs();
    if (graphs.launch_count() > 0)
      log_.info("{} of {} launches were given by {} graphs", graphs.replayed_launch_count(),
                graphs.launch_count(), graphs.graph_count());
    if (!graphs.refusal_reason().empty())
      log_.warn("the device refused a graph, whose kernels are given one by one: {}",
                graphs.refusal_reason());
  }

  bool last_is_bad() const { return state_.health.bad_in_a_row > 0; }

  /// Back to the newest checkpoint of this run. The data go on behind the steps that went wrong,
  /// or, `repeats`, from where they were then. False where there is none, and where the run was
  /// rolled back too often. Collective.
  bool roll_back(const std::string& why, bool repeats) {
    saver_.settle(state_);
    if (!guard_.health().may_roll_back()) return false;
    run_.replica->reducer().complete_pending(run_.replica->context());
    run_.engine.quiesce();
    enter_phase("checkpoint-read");
    const checkpoint::CheckpointChoice choice =
        checkpoint::find_newest(run_.mesh.world, checkpoint_folder());
    if (choice.path.empty()) return false;
    checkpoint::rename_damaged(run_.mesh.world, choice.rejected, log_);
    const RunState then = go_back(run_, choice.path, log_);
    guard_.health().rolled_back(then.health);
    const std::string detail =
        fmt::format("{}: back from step {} to {}, {}", why, state_.step, then.step,
                    repeats ? "the same data again" : "over the data since");
    state_.step = then.step;
    saver_.went_back(then.step);
    state_.samples = then.samples;
    if (repeats) state_.cursor = then.cursor;
    state_.health = guard_.health().state();
    finish_ = false;
    wanted_ = {};
    if (run_.replica->average() != nullptr)
      run_.replica->average()->anchor(run_.replica->context());
    run_.train_loader->start(state_.cursor);
    recorder_.event(state_, "rollback", detail);
    log_.warn("{}", detail);
    return true;
  }

  /// `saves`: a checkpoint of this step is written afterwards, which may become the best one too.
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
    algorithms_.update();  // with the first checkpoint there is a next start; communication is at
                           // rest, as the saver needs it
    checkpointed_at_ = clock_.since_start();
  }

  /// At the stop condition: the last validation, the last checkpoint and the one look at the test
  /// set, each only where it is not there yet.
  void finish_what_is_missing() {
    if (run_.validation_loader &&
        !recorded(run_.mesh.world, deck_.run.folder, state_.step, "validation"))
      evaluate_validation(true);
    write_checkpoint(true);
    if (run_.test_loader && !recorded(run_.mesh.world, deck_.run.folder, state_.step, "test"))
      recorder_.evaluation(state_, "test", evaluate(*run_.replica, *run_.test_loader));
  }

  ExitCode stopped() {
    reason_ = stop_signal() != 0 ? signal_name(stop_signal())
              : stop_file_       ? "STOP file"
              : time_is_up_      ? clock_.source()
                                 : "a signal at another rank";
    recorder_.event(state_, "stopped", reason_);
    const std::string first =
        stop_file_ ? fmt::format("remove {}/STOP and ", deck_.run.folder) : "";
    log_.info("stopped at step {} ({}); {}submit the same command again to go on", state_.step,
              reason_, first);
    return ExitCode::stopped_early;
  }

  ExitCode diverged() {
    recorder_.finish();
    const HealthState& health = guard_.health().state();
    reason_ = fmt::format(
        "loss or gradient not finite, or loss far above its mean, in {} steps in a row, after {} "
        "roll-backs",
        health.bad_in_a_row, health.rollbacks);
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
  Guard& guard_;
  Log& log_;
  optim::Schedule schedule_;
  Interval evaluate_every_, checkpoint_every_, monitor_every_;
  double elapsed_before_;
  Steps steps_;
  Saver saver_;
  AlgorithmFile algorithms_;
  monitor::Trace trace_;
  Wanted wanted_;
  bool finish_;  ///< run.stop is a time, and it is over
  double longest_step_seconds_ = 0, evaluation_seconds_ = 0;
  double checkpointed_at_ = 0, stop_file_looked_at_ = -1;
  bool stop_file_ = false, time_is_up_ = false, best_is_new_ = false, made_a_step_ = false;
  std::string reason_;
};

}  // namespace

ExitCode train(const TrainRequest& request, comm::Environment& environment, comm::Engine& engine,
               Log& log) {
  install_stop_signals();  // from here on a signal is a wish to stop, also while data are opened
                           // and weights read
  const comm::Communicator& world = environment.world();
  const deck::Deck& deck = request.deck;
  const bool lead = world.rank() == 0;
  const RunClock clock = lead ? RunClock(deck.run) : RunClock();
  checkpoint::ExitRecord record;
  record.start = utc_timestamp();
  HeldFolder folder = take_folder(deck, environment, log);
  bool wrong_start =
      true;  // until everything stands: a mistake found so far leaves no folder that was not there
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
      leave_record(ExitCode::done,
                   "the stop condition of the deck was reached before; nothing to do");
      checkpoint::clear_attempts(world, deck.run.folder);
      log.info("the stop condition is reached and everything is recorded: nothing to do");
      return ExitCode::done;
    };
    const FirstLook look = look_at_folder(world, deck, request.restart, folder.ended_as_done);
    if (look.finished_at) return nothing_to_do(*look.finished_at);
    std::unique_ptr<Watchdog> watchdog;
    if (deck.health.watchdog)
      watchdog = std::make_unique<Watchdog>(
          Watchdog::Options{deck.run.folder, record.start, deck.health.watchdog->value},
          environment, engine, log);
    const std::vector<std::string> hosts = hosts_of(environment);
    Run run(deck, environment, engine, log);
    Restored restored = restore(run, request.restart, look.newest, log);
    forget_best_of_other_set(run, restored, log);
    record.step = restored.state.step;
    if (restored.own) record.checkpoint = checkpoint::step_file_name(restored.state.step);
    if (restored.own && nothing_left(world, deck, run.layout.total_steps, restored.state.step,
                                     restored.state.elapsed_seconds))
      return nothing_to_do(restored.state.step);
    wrong_start = false;
    run.record_start(environment);
    std::unique_ptr<Recorder> recorder;
    comm::together(world, [&] {
      recorder = std::make_unique<Recorder>(
          Recorder::Options{.run_folder = deck.run.folder,
                            .records = lead,
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
                        fmt::format("goes on from step {}", restored.state.step));
    });

    Guard guard(run, restored.state, hosts, watchdog.get(), *recorder, log);
    Loop loop(run, folder.lease, clock, restored, *recorder, guard, log);
    try {
      const ExitCode code = loop.train();
      run.engine
          .quiesce();  // weights of the last update may still be gathered into the replica's memory
      enter_phase("end");
      if (const std::size_t bytes = run.engine.staging_bytes(); bytes > 0)
        log.info("pinned host memory beside the plan, for communication: {}",
                 format_bytes(static_cast<double>(bytes)));
      record.step = loop.state().step;
      record.checkpoint = loop.newest_checkpoint();
      comm::together(world, [&] { recorder->settle(); });
      leave_record(code, loop.reason());
      return code;
    } catch (const std::exception& error) {
      // One rank's alone: the others wait in a collective call, and the engine may still work on
      // this rank's buffers. Out from here, with everything alive.
      const auto* known = dynamic_cast<const Error*>(&error);
      record.step = loop.state().step;
      record.checkpoint = loop.newest_checkpoint();
      if (world.size() == 1 || (known != nullptr && known->thrown_on_all_ranks())) throw;
      leave_record(code_of(error), error.what(), true);
      log.error("rank {} on {}: {}", world.rank(), environment.host(), error.what());
      log.flush();
      environment.abort(code_of(error));
    }
  } catch (const std::exception& error) {
    if (folder.made && wrong_start && code_of(error) == ExitCode::wrong_input)
      leave_folder(folder, deck.run.folder);
    else
      leave_record(code_of(error), error.what());
    throw;
  }
}

}  // namespace trireme::train
