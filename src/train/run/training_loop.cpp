// SPDX-License-Identifier: Apache-2.0
//
// The training loop: from the restored state to the stop condition, the end of a row of batch.ramp,
// or another end of the start.
//
// train() begins a step, ends the oldest step in flight, and then acts on requests and due work:
// roll back, compare replicas, evaluate, write a checkpoint, stop. Work is done only at steps after
// which all replicas are equal. The ends of a start are in training_loop_end.cpp. Called by
// train::train() in trainer.cpp.
#include "training_loop.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stop_request.hpp"
#include "trireme/base/answer.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/labels/label_meaning.hpp"
#include "trireme/train/noise_advice.hpp"
#include "trireme/train/scores/class_counts.hpp"
#include "trireme/train/step/evaluation.hpp"

namespace trireme::train {
namespace {

// The average of the noise scale has a decay of 0.9.
constexpr std::int64_t measurements_of_an_average = 10;
constexpr std::size_t worst_classes = 10;  // that the last evaluation of a run names

}  // namespace

TrainingLoop::TrainingLoop(const Parts& parts, const RestoredRun& restored,
                           const StartProgress& progress)
    : run_(parts.run),
      lease_(parts.lease),
      clock_(parts.clock),
      deck_(run_.deck),
      state_(restored.state),
      recorder_(parts.recorder),
      supervisor_(parts.supervisor),
      log_(parts.log),
      schedule_(deck_.schedule, deck_.batch.global, run_.layout.schedule_steps, run_.layout.scale),
      evaluate_every_(deck_.evaluate.every, run_.layout.scale),
      checkpoint_every_(deck_.checkpoint.every, run_.layout.scale),
      monitor_every_(deck_.monitor.every, run_.layout.scale),
      progress_(progress),
      steps_(*run_.replica, *run_.train_loader),
      saver_(
          run_, state_, restored.from_own_folder ? state_.step : -1,
          [this](io::StagedFile& file) { publish(file); }, recorder_, log_),
      stop_file_(deck_.run.folder),
      trace_(parts.trace),
      finish_(run_.layout.total_steps == 0 && state_.elapsed_seconds >= deck_.run.stop.value) {
  if (run_.device.kind == DeviceKind::cuda && !deck_.run.deterministic)
    algorithms_.emplace(run_.mesh.world, deck_.run.folder,
                        AlgorithmFile::shared_path_from_environment(),
                        run_.replica->context().algorithms(), log_);
  if (state_.best && state_.best_metric != deck_.checkpoint.best) {
    if (!deck_.checkpoint.best.empty())
      log_.info("checkpoint.best is now {}: best {} reset", deck_.checkpoint.best,
                state_.best_metric);
    state_.best.reset();
  }
  adapt_plateau();
  if (deck_.monitor.noise_scale)
    noise_every_.emplace(*deck_.monitor.noise_scale, run_.layout.scale);
  else
    state_.noise = {};
  if (deck_.monitor.tensors) tensors_every_.emplace(*deck_.monitor.tensors, run_.layout.scale);
  if (!progress_.is_first_row) return;
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

std::optional<ExitCode> TrainingLoop::train() {
  // 1. Start the loader at the position of the run; set the common state of periodic averaging.
  if (!finished()) run_.train_loader->start(state_.cursor);
  run_.replica->weight_update().anchor_replicas();
  if (state_.owes_evaluation && run_.validation_loader && !finished())
    evaluate_validation(false, true);
  bool stop = false;
  while (!finished() && !stop && is_in_row()) {
    // 2. Assemble the request of the next step.
    const std::int64_t step = state_.step + steps_.in_flight() + 1;
    const StepRequest request{
        .rates = rates_of(step),
        .stop_requests = own_stop_requests(step),
        .averages = run_.replica->weight_update().is_periodic() && common_step(step) == step,
        .measures_noise = noise_every_ && noise_every_->due(step),
        .measures_tensors = tensors_every_ && tensors_every_->due(step),
        .loss_limit = loss_limit()};
    // 3. Inform the supervisor, which informs the watchdog.
    supervisor_.begin_step(step);
    // 4. Enqueue the step.
    steps_.begin(request, trace_for(step));
    // 5. End steps. One step stays in flight unless due work is known to follow it.
    bool past_repair = end_steps(steps_.overlap() && !has_due_work(step) ? 1 : 0);
    if (due_work_.any() || past_repair || unreadable_) past_repair = end_steps(0) || past_repair;
    if (unreadable_) end_unreadable();
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
    //    checkpoints stay the newest until a step is applied again. A stop and the end of a row
    //    of batch.ramp always save: the training continues from there.
    const bool saves =
        stop || !is_in_row() ||
        ((finished() || due_work.checkpoint || (due_work.stop_requests & flag_checkpoint) != 0) &&
         !last_step_was_dropped());
    // 9. Compare replicas before anything is saved or evaluated; roll back if they differ.
    if (saves || due_work.evaluation || supervisor_.comparison_due(step)) {
      if (const std::string differing = supervisor_.describe_differing_replicas();
          !differing.empty()) {
        if (!roll_back(differing, true)) return corrupted(differing);
        stop = false;
        continue;
      }
    }
    // 10. Evaluate, then save.
    if (run_.validation_loader && (finished() || due_work.evaluation))
      evaluate_validation(saves, due_work.evaluation);
    if (saves) write_checkpoint(stop || finished() || !is_in_row());
  }
  recorder_.finish();
  log_graphs();
  if (finished()) log_noise_advice();
  // 11. Write a trace whose last step was not reached; return the exit code.
  if (!finished() && !stop) return std::nullopt;
  if (deck_.monitor.trace && deck_.monitor.trace->first <= state_.step &&
      state_.step < deck_.monitor.trace->last)
    write_trace();
  return end_run();
}

StartProgress TrainingLoop::progress() const {
  StartProgress next = progress_;
  const StepScale& scale = run_.layout.scale;
  next.max_step_seconds *= static_cast<double>(scale.samples_of(state_.step + 1)) /
                           static_cast<double>(run_.layout.global);
  next.checkpoint_seconds = std::max(next.checkpoint_seconds, saver_.max_seconds());
  next.is_first_row = false;
  return next;
}

void TrainingLoop::publish(io::StagedFile& file) {
  supervisor_.publish([&] {
    if (!lease_.confirm()) {
      // The job that has the lease now may write a file of the same name.
      file.abandon();
      lease_.check();
    }
    file.commit();
  });
}

std::int64_t TrainingLoop::common_step(std::int64_t step) const {
  const std::int64_t every = deck_.parallel.sync_every, next = (step + every - 1) / every * every,
                     last = run_.layout.total_steps;
  return step <= last ? std::min(next, last) : next;
}

bool TrainingLoop::finished() const {
  return run_.layout.total_steps > 0 ? state_.step >= run_.layout.total_steps : finish_;
}

double TrainingLoop::loss_limit() const {
  const Health& health = supervisor_.health();
  return steps_.overlap() && steps_.in_flight() == 0 ? health.previous_loss_limit()
                                                     : health.loss_limit();
}

bool TrainingLoop::row_due(std::int64_t step) const {
  return monitor_every_.due(step) || step == run_.layout.total_steps || step == run_.layout.row_end;
}

bool TrainingLoop::evaluation_due(std::int64_t step) const {
  return run_.validation_loader != nullptr && evaluate_every_.due(step);
}

bool TrainingLoop::has_due_work(std::int64_t step) const {
  return step == run_.layout.total_steps || step == run_.layout.row_end || evaluation_due(step) ||
         checkpoint_every_.due(step) || supervisor_.comparison_due(step) ||
         (deck_.monitor.trace && step == deck_.monitor.trace->last);
}

bool TrainingLoop::end_steps(int num_running) {
  bool past_repair = false;
  while (steps_.in_flight() > num_running) {
    const StepResult result = steps_.end();
    // No rank has applied this step, nor one that was begun after it.
    unreadable_ = unreadable_ || (result.stop_requests & flag_unreadable) != 0;
    if (unreadable_) continue;
    after_step(result);
    if (result.applied && !std::exchange(has_applied_step_, true))
      checkpoint::clear_attempts(run_.mesh.world, deck_.run.folder);
    saver_.advance(state_, (result.stop_requests & flag_saving) != 0);
    if (deck_.monitor.trace && state_.step == deck_.monitor.trace->last) write_trace();
    due_work_.stop_requests |= result.stop_requests & ~static_cast<std::uint64_t>(flag_saving);
    due_work_.evaluation = due_work_.evaluation || evaluation_due(state_.step);
    due_work_.checkpoint = due_work_.checkpoint || checkpoint_every_.due(state_.step);
    past_repair = past_repair || supervisor_.health().needs_rollback();
  }
  return past_repair;
}

std::uint32_t TrainingLoop::own_stop_requests(std::int64_t step) {
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
      evaluation_due(step) || deck_.parallel.sync_every > 1 ? progress_.evaluation_seconds : 0;
  time_is_up_ = clock_.must_stop(steps * progress_.max_step_seconds + evaluation,
                                 std::max(progress_.checkpoint_seconds, saver_.max_seconds()));
  if (time_is_up_) stop_requests |= flag_stop;
  if (stop_file_.exists()) stop_requests |= flag_stop;
  if (run_.layout.total_steps == 0 && progress_.elapsed_before + now >= deck_.run.stop.value)
    stop_requests |= flag_finish;
  if (checkpoint_every_.has_elapsed(now - progress_.last_checkpoint_at))
    stop_requests |= flag_checkpoint;
  return stop_requests;
}

void TrainingLoop::after_step(const StepResult& result) {
  ++state_.step;
  state_.samples += run_.layout.global;
  state_.cursor = run_.layout.batching.advance(state_.cursor);
  state_.elapsed_seconds = progress_.elapsed_before + clock_.since_start();
  progress_.max_step_seconds = std::max(progress_.max_step_seconds, result.times.total);
  if (!result.applied) ++state_.skipped;
  recorder_.step(state_, result);
  const bool row = row_due(state_.step) || finished();
  supervisor_.end_step(state_, result, row_due(state_.step + 1));
  // Evaluations change the rate only while no step is in flight: it is the one of this step.
  if (row) recorder_.train_row(state_, result, rates_of(state_.step));
  if (result.gradients) {
    const NoiseScale noise =
        add_measurement(*result.gradients, deck_.batch.micro, run_.layout.global, state_.noise);
    recorder_.noise_scale(state_, noise, deck_.batch.micro);
    noise_scales_.push_back(noise.samples);
    if (state_.noise.measurements == measurements_of_an_average) log_noise_advice();
  }
  recorder_.tensors(state_, result.tensors);
  if (row) log_trials();
}

void TrainingLoop::log_noise_advice() const {
  const auto reading = read_noise(noise_scales_);
  if (!reading) return;
  const NoiseAdvice advice = noise_advice(*reading, deck_, run_.layout);
  log_.info("{}", advice.text);
  if (!advice.ramp.empty()) log_.info("a ramp for a next deck: {}", advice.ramp);
}

void TrainingLoop::log_trials() {
  const ops::TrialReport trials = run_.replica->context().trials();
  if (trials.problems == std::exchange(logged_trials_, trials.problems)) return;
  log_.info("the fastest library algorithms of {} were chosen in {:.1f} s; {} keeps them{}",
            counted(trials.problems, "problem", "problems"), trials.seconds,
            io::run_names::algorithms,
            trials.refused == 0
                ? ""
                : fmt::format("; the next start chooses those of {} more", trials.refused));
}

monitor::Trace* TrainingLoop::trace_for(std::int64_t step) {
  trace_.begin_step(step);
  return trace_.is_recording() ? &trace_ : nullptr;
}

void TrainingLoop::write_trace() {
  const comm::Communicator& world = run_.mesh.world;
  const std::string mine = trace_.json();
  run_.engine.quiesce();
  std::vector<std::string> parts;
  for (int rank = 0; rank < world.size(); ++rank) parts.push_back(world.broadcast(mine, rank));
  if (world.rank() != 0) return;
  try {
    monitor::write_trace(run_.folder() / io::run_names::trace, parts);
  } catch (const std::exception& error) {
    log_.warn("{}", error.what());
  }
}

void TrainingLoop::log_graphs() const {
  const LaunchGraphs& graphs = run_.replica->graphs();
  if (graphs.launch_count() > 0)
    log_.info("CUDA graphs: {} of {} kernel launches replayed ({} graphs)",
              graphs.replayed_launch_count(), graphs.launch_count(), graphs.graph_count());
  if (!graphs.refusal_reason().empty())
    log_.warn("the device refused a CUDA graph, its kernels are launched one by one: {}",
              graphs.refusal_reason());
}

bool TrainingLoop::roll_back(const std::string& why, bool repeats) {
  saver_.wait_until_published(state_);
  if (!supervisor_.health().may_roll_back()) return false;
  run_.replica->weight_update().complete_pending();
  run_.engine.quiesce();
  enter_phase("checkpoint-read");
  // The cause of skipped steps may already be in weights that were saved after such a step: at the
  // end of a row of batch.ramp, or at a stop. An update since then shows that it is not.
  const std::int64_t dropped = supervisor_.health().state().consecutive_dropped;
  const checkpoint::CheckpointChoice choice = checkpoint::find_newest(
      run_.mesh.world, checkpoint_folder(), [&](const checkpoint::Info& info) {
        const bool all_since = dropped > state_.step - info.step;
        return all_since && run_state_of(info).health.consecutive_dropped > 0
                   ? "its last step was skipped, and so were the steps after it"
                   : std::string();
      });
  if (choice.path.empty()) return false;
  checkpoint::rename_rejected(run_.mesh.world, choice.rejected, log_);
  const RunState then = reload_checkpoint(run_, choice.path, log_);
  supervisor_.health().rolled_back(then.health);
  const std::string detail =
      fmt::format("{}: rolled back from step {} to {}, {}", why, state_.step, then.step,
                  repeats ? "repeating the same data" : "skipping the data since");
  state_.step = then.step;
  saver_.rolled_back(then.step);
  state_.samples = then.samples;
  state_.plateau = then.plateau;
  if (noise_every_) state_.noise = then.noise;
  if (repeats) state_.cursor = then.cursor;
  state_.health = supervisor_.health().state();
  finish_ = false;
  due_work_ = {};
  run_.replica->weight_update().anchor_replicas();
  run_.train_loader->start(state_.cursor);
  recorder_.begin_epoch(state_.cursor.epoch);
  recorder_.event(state_, "rollback", detail);
  log_.warn("{}", detail);
  return true;
}

optim::StepRates TrainingLoop::rates_of(std::int64_t step) const {
  optim::StepRates rates{.learning_rate = schedule_.rate(step, state_.plateau.reductions)};
  if (deck_.schedule.varies_momentum(*deck_.optimizer.rule))
    rates.momentum = schedule_.momentum(step);
  return rates;
}

void TrainingLoop::adapt_plateau() {
  optim::PlateauState& plateau = state_.plateau;
  if (plateau.metric.empty()) return;
  if (deck_.schedule.kind != optim::ScheduleKind::plateau) {
    log_.info("schedule.kind is no longer \"plateau\": its reductions of the rate ({}) are dropped",
              plateau.reductions);
    plateau = {};
  } else if (plateau.metric != deck_.schedule.plateau.metric) {
    log_.info("schedule.metric is now {}: best {} of the plateau reset",
              deck_.schedule.plateau.metric, plateau.metric);
    plateau.metric = deck_.schedule.plateau.metric;
    plateau.forget_best();
  }
}

void TrainingLoop::count_for_plateau(const Metrics& metrics) {
  if (deck_.schedule.kind != optim::ScheduleKind::plateau ||
      state_.step <= schedule_.warmup_steps() || metrics.num_labels == 0)
    return;
  const optim::PlateauOptions& options = deck_.schedule.plateau;
  const double before = rates_of(state_.step + 1).learning_rate;
  if (!optim::count_evaluation(options, metrics.value_of(options.metric), state_.plateau)) return;
  const double rate = rates_of(state_.step + 1).learning_rate;
  if (rate == before) return;  // it is schedule.min_ratio times the peak already
  const std::string detail =
      fmt::format("{} did not improve in {}: rate {:.6g} -> {:.6g}", options.metric,
                  counted(options.patience + 1, "evaluation", "evaluations"), before, rate);
  recorder_.event(state_, "rate_reduced", detail);
  log_.info("step {}: {}", state_.step, detail);
}

Metrics TrainingLoop::evaluate_set(data::Loader& loader, const std::string& split, bool names_worst,
                                   const std::function<void()>& before_error) {
  const double start = monotonic_seconds();
  const ReplicaOptions& options = run_.replica->options();
  EvaluationPass pass = start_pass(loader);
  const bool counts_classes = names_worst && deck::answer_of(deck_).is_one_class();
  ClassCounts counts(counts_classes ? options.outputs.count : 0);
  if (counts_classes) pass.sink = [&](const EvaluatedRows& rows) { counts.add(rows); };
  const Metrics metrics = evaluate(*run_.replica, pass, before_error);
  recorder_.evaluation(state_, split, metrics, monotonic_seconds() - start);
  if (counts_classes) {
    const std::vector<ClassScore> scores = counts.gather(run_.mesh.world);
    const data::LabelMeaning sides[] = {
        data::meaning_of(run_.train_set.info(), "data.train", deck_.data.train), state_.meaning};
    log_.info(
        "{}: accuracy of the worst classes: {}", split,
        describe_worst(scores, data::class_names(sides, options.outputs.count), worst_classes));
  }
  return metrics;
}

void TrainingLoop::evaluate_validation(bool saves, bool is_due) {
  // If samples cannot be read, the state is saved with this mark, and the next start begins here.
  state_.owes_evaluation = is_due;
  // Only the evaluation at the end of the run is of the whole set.
  const bool whole = !run_.subset_loader || finished();
  const double start = monotonic_seconds();
  const Metrics metrics =
      evaluate_set(whole ? *run_.validation_loader : *run_.subset_loader,
                   whole ? "validation" : "validation-subset", finished() && !run_.test_loader,
                   [this] { save_before_error(); });
  progress_.evaluation_seconds =
      std::max(progress_.evaluation_seconds, monotonic_seconds() - start);
  state_.owes_evaluation = false;
  if (is_due) count_for_plateau(metrics);
  if (deck_.checkpoint.best.empty()) return;
  const bool higher = evaluation_metric(deck_.checkpoint.best).is_better_if_higher;
  const double value = metrics.value_of(deck_.checkpoint.best);
  if (!std::isfinite(value) ||
      (state_.best && (higher ? value <= *state_.best : value >= *state_.best)))
    return;
  state_.best = value;
  state_.best_metric = deck_.checkpoint.best;
  state_.best_step = state_.step;
  best_is_new_ = true;
  if (!saves && std::exchange(best_is_new_, false)) saver_.save(state_, SavedAs::best);
}

void TrainingLoop::write_checkpoint(bool now) {
  lease_.check();
  const SavedAs files = std::exchange(best_is_new_, false) ? SavedAs::step_and_best : SavedAs::step;
  if (now)
    saver_.save_now(state_, files);
  else
    saver_.save(state_, files);
  // A restart is possible from the first checkpoint on. No communication is in flight here, which
  // the collective update() needs.
  if (algorithms_) algorithms_->update();
  progress_.last_checkpoint_at = clock_.since_start();
}

}  // namespace trireme::train
