// SPDX-License-Identifier: Apache-2.0
//
// The ends of the training loop: the stop condition, a stop request, samples that cannot be read,
// divergence, and replicas that differ. At the stop condition finish_run() adds the last
// evaluation, the last checkpoint and the test.
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "training_loop.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/monitor/run_folder.hpp"
#include "trireme/train/step/evaluation.hpp"

namespace trireme::train {
namespace {

/// Returns whether metrics.jsonl holds an evaluation of a split at a step since the latest fresh
/// start: a restart at the stop condition does only the missing work. Collective.
bool has_recorded_evaluation(const comm::Communicator& world, const std::string& run_folder,
                             std::int64_t step, const std::string& split) {
  std::int64_t found = 0;
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    monitor::MetricsReader row =
        monitor::RunFolder(run_folder).read_metrics({"kind", "event", "step", "split"});
    while (row.next()) {
      if (row["kind"] == "event" && row["event"] == "start") found = 0;
      if (row["kind"] == "evaluate" && row["step"] == step && row["split"] == split) found = 1;
    }
  });
  return world.all_reduce(found, comm::Reduction::max) != 0;
}

}  // namespace

bool is_complete(const comm::Communicator& world, const deck::Deck& deck, std::int64_t total_steps,
                 std::int64_t step, double elapsed_seconds) {
  const bool over = total_steps > 0 ? step >= total_steps : elapsed_seconds >= deck.run.stop.value;
  return over &&
         (deck.data.validation.empty() ||
          has_recorded_evaluation(world, deck.run.folder, step, "validation")) &&
         (deck.data.test.empty() || has_recorded_evaluation(world, deck.run.folder, step, "test"));
}

ExitCode TrainingLoop::end_run() {
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

void TrainingLoop::finish_run() {
  if (run_.validation_loader &&
      !has_recorded_evaluation(run_.mesh.world, deck_.run.folder, state_.step, "validation"))
    evaluate_validation(true, state_.owes_evaluation);
  write_checkpoint(true);
  if (run_.test_loader &&
      !has_recorded_evaluation(run_.mesh.world, deck_.run.folder, state_.step, "test")) {
    evaluate_set(*run_.test_loader, "test", true);
  }
}

template <class Body>
void TrainingLoop::try_before_error(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    // An error of this rank alone ends the job: the other ranks wait in a collective call.
    if (run_.mesh.world.size() > 1 && !error.thrown_on_all_ranks()) throw;
    log_.warn("a checkpoint could not be written before this start ends: {}", error.what());
  }
}

void TrainingLoop::save_before_error() {
  recorder_.finish();
  try_before_error([&] { saver_.wait_until_published(state_); });
  if (last_step_was_dropped() || supervisor_.health().needs_rollback() || state_.step == 0) return;
  if (!supervisor_.describe_differing_replicas().empty()) return;
  if (saver_.newest_step() == state_.step && state_.owes_evaluation) return;  // saved before
  log_.info("samples cannot be read; the state of step {} is saved before this start ends",
            state_.step);
  try_before_error([&] { write_checkpoint(true); });
}

void TrainingLoop::end_unreadable() {
  run_.replica->weight_update().complete_pending();
  run_.engine.quiesce();
  if (deck_.parallel.sync == parallel::SyncKind::step) {
    save_before_error();
  } else {
    // This rank's update of the step is done: with "delayed" by the gradient of the step before,
    // with "every n steps" by that of this replica. So the step before cannot be saved any more.
    recorder_.finish();
    try_before_error([&] { saver_.wait_until_published(state_); });
  }
  comm::together(run_.mesh.world, [&] {
    if (steps_.reader_error()) std::rethrow_exception(steps_.reader_error());
  });
}

ExitCode TrainingLoop::stopped() {
  reason_ = stop_reason(stop_file_, time_is_up_, clock_.source());
  recorder_.event(state_, "stopped", reason_);
  const std::string first =
      stop_file_.was_found() ? fmt::format("remove {} and ", stop_file_.path()) : "";
  log_.info("stopped at step {} ({}); {}submit the same command again to resume", state_.step,
            reason_, first);
  return ExitCode::stopped_early;
}

ExitCode TrainingLoop::diverged() {
  recorder_.finish();
  const HealthState& health = supervisor_.health().state();
  reason_ = fmt::format(
      "loss or gradient not finite, or loss far above its mean, in {} consecutive steps, after {} "
      "rollbacks",
      health.consecutive_dropped, health.rollbacks);
  recorder_.event(state_, "diverged", reason_);
  log_.warn("diverged at step {}: {}; a lower rate, a longer warm-up or clip_norm may help",
            state_.step, reason_);
  return ExitCode::diverged;
}

ExitCode TrainingLoop::corrupted(const std::string& differing) {
  recorder_.finish();
  reason_ = differing;
  recorder_.event(state_, "replicas_differ", reason_);
  log_.error("step {}: {}; submit the same command again, if possible without that host",
             state_.step, reason_);
  return ExitCode::rank_lost;
}

}  // namespace trireme::train
