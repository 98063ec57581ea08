// SPDX-License-Identifier: Apache-2.0
//
// Writes checkpoints during training, in the background or at once, and rotates old ones.
//
// save() quiesces the replica, copies its state and starts a BackgroundWrite; advance(), called
// after each step, collects finished parts; published() links best.h5, starts rotation and writes
// the row of metrics. Called by the training loop.
#include "saver.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/io/file.hpp"
#include "trireme/train/records/software_versions.hpp"
#include "trireme/train/run/run_clock.hpp"

namespace trireme::train {
namespace {

/// Aborts after this many consecutive failed checkpoints: a visible failure is better than hours of
/// training that cannot be resumed.
constexpr int max_failures = 3;

}  // namespace

Saver::Saver(Run& run, const RunState& state, std::int64_t newest, checkpoint::Publisher publish,
             Recorder& recorder, Log& log)
    : run_(run),
      recorder_(recorder),
      log_(log),
      publish_(std::move(publish)),
      folder_(run.folder().checkpoints()),
      written_by_(to_line(software_versions())),
      newest_step_(newest),
      best_{state.best, state.best_metric, state.best_step} {
  retention_.newest = run.deck.checkpoint.keep;
  if (run.deck.checkpoint.keep_every)
    retention_.intervals_up_to = [interval =
                                      Interval(*run.deck.checkpoint.keep_every, run.layout.scale)](
                                     std::int64_t step) { return interval.passed(step); };
}

std::string Saver::path_of(const Target& target) const {
  return folder_ + "/" +
         (target.files == SavedAs::best ? io::run_names::best_checkpoint
                                        : checkpoint::step_file_name(target.state.step));
}

/// Returns the metadata of a checkpoint of this state. Collective: all ranks take rank 0's times.
checkpoint::Info Saver::make_info(RunState& state) const {
  run_.mesh.world.broadcast(std::as_writable_bytes(std::span(&state.elapsed_seconds, 1)),
                            0);  // All ranks must write the same time: rank 0's.
  const data::LabelMeaning meaning = data::merge_meanings(
      data::meaning_of(run_.train_set.info(), "data.train", run_.deck.data.train), state.meaning);
  checkpoint::Info info = checkpoint_info(state, *run_.replica, run_.deck_text, meaning,
                                          run_.training_identity(), run_.deck.run.seed);
  info.written_by = written_by_;
  info.state["total_steps"] = run_.layout.total_steps;
  if (run_.replica->options().tokens())
    info.state["vocabulary"] = run_.replica->options().outputs.count;
  return info;
}

/// The state's best is reset to that of best.h5, because the failed checkpoint may have been the
/// best.
template <class Body>
void Saver::try_write(RunState& state, std::int64_t step, bool required, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    // An error of this rank alone: the other ranks wait in a collective call and cannot handle
    // it.
    if (run_.mesh.world.size() > 1 && !error.thrown_on_all_ranks()) throw;
    active_write_.reset();
    state.best = best_.metric == run_.deck.checkpoint.best ? best_.value : std::nullopt;
    state.best_metric = best_.metric;
    state.best_step = best_.step;
    ++consecutive_failures_;
    recorder_.event(state, "checkpoint_failed", fmt::format("step {}: {}", step, error.what()));
    // Thrown on all ranks alike: the run ends.
    if (required || consecutive_failures_ >= max_failures) {
      // Failure instead of InputError, also for wrong paths: the deck was valid when the run
      // started, so the machine has changed since.
      Failure failure(error.what());
      failure.set_thrown_on_all_ranks();
      throw failure;
    }
    log_.warn(
        "the checkpoint of step {} could not be written ({}); training continues, older "
        "checkpoints "
        "are unchanged ({} of {} consecutive failures, then the run ends)",
        step, error.what(), consecutive_failures_, max_failures);
  }
}

void Saver::quiesce(RunState& state) {
  wait_until_published(state);
  run_.replica->weight_update().complete_pending();
  run_.engine.quiesce();
}

void Saver::restore_folder(RunState& state, SavedAs files) {
  // Not the folders above it: without the run folder its lease is gone too.
  int is_new = run_.mesh.world.rank() == 0 && mkdir(folder_.c_str(), 0777) == 0 ? 1 : 0;
  run_.mesh.world.broadcast(std::as_writable_bytes(std::span(&is_new, 1)), 0);
  if (is_new == 0) return;
  newest_step_ = -1;
  best_ = {};
  if (files == SavedAs::step) {  // the next evaluation writes best.h5
    state.best.reset();
    state.best_metric.clear();
    state.best_step = 0;
  }
  const std::string detail = fmt::format(
      "{} was removed while the run goes on: it is created anew, and the checkpoints that were in "
      "it are no longer there",
      folder_);
  log_.warn("{}", detail);
  recorder_.event(state, "folder_recreated", detail);
}

void Saver::save(RunState& state, SavedAs files) {
  wait_until_published(state);  // This wait belongs to the stall of the previous checkpoint.
  const double start = monotonic_seconds();
  quiesce(state);
  restore_folder(state, files);
  try_write(state, state.step, false, [&] {
    if (!run_.deck.checkpoint.asynchronous) return write(state, files);
    const checkpoint::Info info = make_info(state);
    const std::vector<checkpoint::TensorSlice> pieces = slices_of(*run_.replica, Rows::share, true);
    const Target target{state, files};
    auto file = std::make_unique<checkpoint::BackgroundWrite>(
        run_.mesh.world, path_of(target), pieces, info, run_.replica->state_copy(), publish_);
    active_write_ = ActiveWrite{target, monotonic_seconds() - start, std::move(file)};
  });
}

void Saver::write(RunState& state, SavedAs files) {
  const double start = monotonic_seconds();
  const checkpoint::Info info = make_info(state);
  const Target target{state, files};
  const checkpoint::WriteReport report =
      checkpoint::write(run_.mesh.world, path_of(target),
                        slices_of(*run_.replica, Rows::share, true), info, publish_);
  published(target, report, monotonic_seconds() - start);
}

void Saver::published(const Target& target, const checkpoint::WriteReport& report,
                      double stall_seconds) {
  const RunState& state = target.state;
  const double start = monotonic_seconds();
  if (target.files == SavedAs::best) {
    best_ = {state.best, state.best_metric, state.best_step};
  } else {
    newest_step_ = state.step;
    const std::string name = checkpoint::step_file_name(state.step);
    // After a skipped step a rollback needs the checkpoints before this one.
    const bool rotates = state.health.consecutive_dropped == 0;
    try {
      if (target.files == SavedAs::step_and_best) link_best(state);
    } catch (...) {
      if (rotates) start_rotation(name);  // Rotation frees space.
      throw;
    }
    if (rotates) start_rotation(name);
    const double after = monotonic_seconds() - start;
    recorder_.checkpoint(state, std::string(io::run_names::checkpoints) + "/" + name, report.bytes,
                         stall_seconds + after, report.copy_seconds, report.seconds + after);
  }
  max_seconds_ = std::max(max_seconds_, report.seconds + monotonic_seconds() - start);
  consecutive_failures_ = 0;
}

/// Makes best.h5 a hard link to the step's file, or a copy if the file system has no links.
/// Published by a rename. Collective.
void Saver::link_best(const RunState& state) {
  const std::string path = folder_ + "/" + checkpoint::step_file_name(state.step);
  comm::together(run_.mesh.world, [&] {
    if (run_.mesh.world.rank() != 0) return;
    io::StagedFile best(folder_ + "/" + io::run_names::best_checkpoint);
    if (link(path.c_str(), best.temporary().c_str()) != 0) {
      const int error = errno;
      ensure(io::links_unsupported(error), "{}: cannot be linked to {}: {}", best.temporary(), path,
             std::strerror(error));
      io::copy_file(path, best.temporary());
    }
    publish_(best);
  });
  best_ = {state.best, state.best_metric, state.best_step};
}

void Saver::start_rotation(const std::string& newest_name) {
  if (run_.mesh.world.rank() != 0) return;
  rotation_ = std::async(std::launch::async | std::launch::deferred,
                         [folder = folder_, keep = retention_, newest_name] {
                           checkpoint::rotate(folder, keep, newest_name);
                         });
}

void Saver::end_rotation() {
  if (!rotation_.valid()) return;
  try {
    rotation_.get();
  } catch (const std::exception& error) {
    log_.warn("older checkpoints could not be removed: {}", error.what());
  }
}

void Saver::save_now(RunState& state, SavedAs files) {
  TRIREME_EXPECT(files != SavedAs::best);
  quiesce(state);
  restore_folder(state, files);
  try_write(state, state.step, true, [&] {
    if (newest_step_ != state.step)
      write(state, files);
    else if (files == SavedAs::step_and_best)
      link_best(state);
  });
  end_rotation();
}

void Saver::advance(RunState& state, bool busy) {
  if (!active_write_ || busy) return;
  const double start = monotonic_seconds();
  run_.engine.quiesce();
  try_write(state, active_write_->target.state.step, false, [&] {
    const bool is_published = active_write_->file->advance();
    active_write_->stall_seconds += monotonic_seconds() - start;
    if (!is_published) return;
    const ActiveWrite writing = *std::exchange(active_write_, std::nullopt);
    published(writing.target, writing.file->finish(), writing.stall_seconds);
  });
}

void Saver::wait_until_published(RunState& state) {
  while (active_write_) {
    enter_phase("checkpoint-wait");
    advance(state, false);
  }
  end_rotation();
}

}  // namespace trireme::train
