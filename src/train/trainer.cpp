#include "trireme/train/trainer.hpp"

#include <algorithm>
#include <memory>
#include <span>

#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/device/device.hpp"
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

/// The loop of one start: made once everything stands, it owns what changes from step to step.
class Loop {
 public:
  Loop(Run& run, checkpoint::Lease& lease, RunState state, Recorder& recorder, Log& log)
      : run_(run),
        lease_(lease),
        deck_(run.deck),
        state_(std::move(state)),
        recorder_(recorder),
        log_(log),
        schedule_(deck_.schedule, deck_.batch.global, run.layout.schedule_steps, run.layout.scale),
        clock_(deck_.run),
        evaluate_every_(deck_.evaluate.every, run.layout.scale),
        checkpoint_every_(deck_.checkpoint.every, run.layout.scale),
        monitor_every_(deck_.monitor.every, run.layout.scale),
        elapsed_before_(state_.elapsed_seconds),
        checkpointed_step_(state_.step),
        finish_(run.layout.total_steps == 0 && state_.elapsed_seconds >= deck_.run.stop.value) {
    if (clock_.source() != "none") log_.info("this start ends by itself before {} ({} left)", clock_.source(), static_cast<long>(*clock_.left()));
  }

  ExitCode train() {
    if (!finished()) run_.train_loader->start(state_.cursor);
    bool stop = false;
    while (!finished() && !stop) {
      const double rate = schedule_.rate(state_.step + 1);
      const StepResult result = train_step(*run_.replica, *run_.train_loader, run_.mesh, rate, own_wishes());
      after_step(result, rate);
      if (bad_in_a_row_ >= nonfinite_steps_allowed) return diverged();
      finish_ = finish_ || (result.wishes & wish_finish) != 0;
      stop = (result.wishes & wish_stop) != 0;
      if (run_.validation_loader && (finished() || evaluate_every_.due(state_.step) || (result.wishes & wish_evaluate) != 0)) evaluate_validation();
      if (finished() || stop || checkpoint_every_.due(state_.step) || (result.wishes & wish_checkpoint) != 0) write_checkpoint();
    }
    recorder_.finish();
    if (!finished()) return stopped();
    finish_what_is_missing();
    reason_ = "the stop condition of the deck is reached";
    return ExitCode::done;
  }

  const RunState& state() const { return state_; }
  const std::string& reason() const { return reason_; }
  std::string newest_checkpoint() const { return checkpointed_step_ > 0 ? checkpoint::step_file_name(checkpointed_step_) : ""; }

 private:
  /// The same answer on every rank: times count only by way of the wishes.
  bool finished() const { return run_.layout.total_steps > 0 ? state_.step >= run_.layout.total_steps : finish_; }

  /// What this rank wants of the step about to be made. Times are world rank 0's alone.
  std::uint32_t own_wishes() {
    std::uint32_t wishes = wish_nothing;
    if (stop_signal() != 0) wishes |= wish_stop;
    if (run_.mesh.world.rank() != 0) return wishes;
    lease_.renew();
    const double now = clock_.since_start();
    if (clock_.must_stop(longest_step_seconds_, checkpoint_seconds_)) wishes |= wish_stop;
    if (now - stop_file_looked_at_ >= 0.5) {  // a stat a step would weigh on a parallel file system
      stop_file_looked_at_ = now;
      struct stat status {};
      stop_file_ = stat((deck_.run.folder + "/STOP").c_str(), &status) == 0;
    }
    if (stop_file_) wishes |= wish_stop;
    if (run_.layout.total_steps == 0 && elapsed_before_ + now >= deck_.run.stop.value) wishes |= wish_finish;
    if (evaluate_every_.over(now - evaluated_at_)) wishes |= wish_evaluate;
    if (checkpoint_every_.over(now - checkpointed_at_)) wishes |= wish_checkpoint;
    return wishes;
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
    const double now = clock_.since_start();
    if (monitor_every_.due(state_.step) || monitor_every_.over(now - monitored_at_) || finished()) {
      monitored_at_ = now;
      recorder_.train_row(state_, result, rate);
    }
  }

  void evaluate_validation() {
    const Metrics metrics = evaluate(*run_.replica, *run_.validation_loader, run_.mesh);
    evaluated_at_ = clock_.since_start();
    recorder_.evaluation(state_, "validation", metrics);
    if (deck_.checkpoint.best.empty()) return;
    const bool higher = deck_.checkpoint.best == "top1";
    const double value = higher ? metrics.top1 : deck_.checkpoint.best == "loss" ? metrics.loss : metrics.perplexity();
    if (state_.best && (higher ? value <= *state_.best : value >= *state_.best)) return;
    state_.best = value;
    state_.best_step = state_.step;
    best_is_new_ = true;
    if (!(finished() || checkpoint_every_.due(state_.step))) save_best_alone();
  }

  std::string checkpoint_folder() const { return deck_.run.folder + "/checkpoints"; }

  checkpoint::WriteReport write_file(const std::string& path) {
    const std::vector<checkpoint::Piece> pieces = pieces_of(*run_.replica, run_.mesh, Rows::share, true);
    run_.mesh.world.broadcast(std::as_writable_bytes(std::span(&state_.elapsed_seconds, 1)), 0);  // a file says one time: rank 0's
    const checkpoint::Info info = info_of(state_, *run_.replica, run_.deck_text, run_.train_set.info().classes, run_.train_set.info().identity, deck_.run.seed);
    run_.engine.quiesce();
    return checkpoint::write(run_.mesh.world, path, pieces, info);
  }

  void save_best_alone() {
    write_file(checkpoint_folder() + "/best.h5");
    best_is_new_ = false;
  }

  void write_checkpoint() {
    if (checkpointed_step_ == state_.step) return;
    const std::string name = checkpoint::step_file_name(state_.step), path = checkpoint_folder() + "/" + name;
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
      ensure(link(path.c_str(), fresh.c_str()) == 0 && rename(fresh.c_str(), best.c_str()) == 0, "{}: cannot be linked to {}", best, path);
    });
  }

  /// At the stop condition: the last validation, the last checkpoint and the one look at the test set, each only where it is not there yet.
  void finish_what_is_missing() {
    if (run_.validation_loader && !recorded("validation")) evaluate_validation();
    write_checkpoint();
    if (run_.test_loader && !recorded("test")) recorder_.evaluation(state_, "test", evaluate(*run_.replica, *run_.test_loader, run_.mesh));
  }

  bool recorded(const std::string& split) {
    std::int64_t found = run_.mesh.world.rank() == 0 && Recorder::has_evaluation(deck_.run.folder, state_.step, split) ? 1 : 0;
    return run_.mesh.world.all_reduce(found, comm::Reduction::max) != 0;
  }

  ExitCode stopped() {
    reason_ = stop_signal() != 0 ? signal_name(stop_signal()) : stop_file_ ? "STOP file" : run_.mesh.world.rank() == 0 ? clock_.source() : "a wish of another rank";
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
  const deck::Deck& deck_;
  RunState state_;
  Recorder& recorder_;
  Log& log_;
  optim::Schedule schedule_;
  RunClock clock_;
  Interval evaluate_every_, checkpoint_every_, monitor_every_;
  double elapsed_before_;
  std::int64_t checkpointed_step_;
  bool finish_;  ///< run.stop is a time, and it is over
  double longest_step_seconds_ = 0, checkpoint_seconds_ = 0;
  double evaluated_at_ = 0, checkpointed_at_ = 0, monitored_at_ = 0, stop_file_looked_at_ = -1;
  bool stop_file_ = false, best_is_new_ = false;
  int bad_in_a_row_ = 0;
  std::string reason_;
};

}  // namespace

ExitCode train(const TrainRequest& request, comm::Environment& environment, Log& log) {
  const comm::Communicator& world = environment.world();
  const deck::Deck& deck = request.deck;
  const bool lead = world.rank() == 0;
  checkpoint::ExitRecord record;
  record.start = utc_timestamp();
  bool own_folder = false;  // an exit record is written only by the job that holds the folder
  const auto leave_record = [&](ExitCode code, const std::string& reason) {
    if (!lead || !own_folder) return;
    record.code = code;
    record.reason = reason;
    checkpoint::write_exit_record(deck.run.folder, record);
  };

  std::unique_ptr<Loop> loop;
  try {
    checkpoint::Lease lease = take_folder(deck, environment, log);
    own_folder = true;
    Run run(deck, environment, log);
    RunState state = restore(run, request.restart, log);
    run.record_start(environment);
    Recorder recorder({.run_folder = deck.run.folder,
                       .records = lead,
                       .tensorboard = deck.monitor.tensorboard,
                       .every_steps = run.progress_steps(),
                       .total_steps = run.layout.total_steps,
                       .global = deck.batch.global,
                       .samples_per_epoch = run.layout.samples_per_epoch,
                       .memory_bytes = run.plan.total(),
                       .fresh = state.step == 0},
                      log);
    if (state.step > 0) recorder.event(state, "restart", fmt::format("goes on from step {}", state.step));
    install_stop_signals();

    loop = std::make_unique<Loop>(run, lease, std::move(state), recorder, log);
    const ExitCode code = loop->train();
    record.step = loop->state().step;
    record.checkpoint = loop->newest_checkpoint();
    leave_record(code, loop->reason());
    lease.release();
    return code;
  } catch (const Error& error) {
    leave_record(error.code(), error.what());
    if (loop && world.size() > 1) {  // the other ranks wait in a collective: they cannot be asked
      log.error("rank {} on {}: {}", world.rank(), environment.host(), error.what());
      log.flush();
      environment.abort(error.code());
    }
    throw;
  }
}

}  // namespace trireme::train
