// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "train/records/recorder.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/background.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/run_state.hpp"

namespace trireme::train {

/// The files that a checkpoint is saved as.
enum class SavedAs : std::uint8_t {
  step,           ///< The file of the step.
  step_and_best,  ///< The file of the step, and best.h5 becomes a link to it.
  best,           ///< Only best.h5.
};

/// Writes the checkpoints of a run, one at a time. With checkpoint.async a thread writes while
/// training continues; otherwise save() returns when the file is published:
///
///   main thread    save(n): copy | step n + 1 | advance() | step n + 2 | advance(): publish
///   writer thread                | digests, layout, write | flush, read back, seal, rename
///
/// A checkpoint that cannot be written leaves the older ones unchanged, an event row and a warning;
/// training continues. The error is thrown after three consecutive failures, or at once from
/// save_now(). Calls with a state are collective over the world. If best.h5 cannot be written, the
/// state's best is reset to the value of the existing best.h5.
class Saver {
 public:
  /// `newest`: step of the newest checkpoint in the run folder; -1: none. `publish` is called on
  /// rank 0 before a file gets its final name.
  Saver(Run& run, const RunState& state, std::int64_t newest, checkpoint::Publisher publish,
        Recorder& recorder, Log& log);

  /// Starts a checkpoint of this state, after waiting for the previous one.
  void save(RunState& state, SavedAs files);
  /// Writes a checkpoint of this state and returns when it is published; writes no file of the step
  /// that exists already. Throws Failure if it cannot be written.
  void save_now(RunState& state, SavedAs files);
  /// Called between steps: advances the active checkpoint unless `busy` says that some rank's
  /// thread is still writing its part.
  void advance(RunState& state, bool busy);
  /// Waits until the active checkpoint is published, and until rotation has ended.
  void wait_until_published(RunState& state);
  /// Notes that the run was rolled back to this checkpoint, now the newest.
  void rolled_back(std::int64_t step) { newest_step_ = step; }

  /// Returns whether this rank's thread is writing: the flag flag_saving of the next step.
  bool busy() const { return active_write_ && active_write_->file->busy(); }
  /// Returns the step of the newest published checkpoint; -1: none.
  std::int64_t newest_step() const { return newest_step_; }
  /// Returns the longest duration of a checkpoint so far, including its thread, in seconds.
  double max_seconds() const { return max_seconds_; }

 private:
  /// The state and destination of a checkpoint.
  struct Target {
    RunState state;
    SavedAs files = SavedAs::step;
  };
  struct ActiveWrite {
    Target target;
    double stall_seconds = 0;
    std::unique_ptr<checkpoint::BackgroundWrite> file;
  };
  struct Best {
    std::optional<double> value;
    std::string metric;
    std::int64_t step = 0;
  };
  std::string path_of(const Target& target) const;
  checkpoint::Info make_info(RunState& state) const;
  /// Waits for the active checkpoint, the pending gradient and all communication: then the replica
  /// may be read.
  void quiesce(RunState& state);
  /// Creates the folder anew if it was removed, with a warning and an event row. Then there is no
  /// best state but the one that is saved now. Collective.
  void restore_folder(RunState& state, SavedAs files);
  void write(RunState& state, SavedAs files);
  /// After publication: updates newest and best, starts rotation, writes the row of metrics.
  void published(const Target& target, const checkpoint::WriteReport& report, double stall_seconds);
  void link_best(const RunState& state);
  /// Starts a thread on rank 0 that removes the checkpoints that rotation does not keep: deleting a
  /// large file can take a file system a good part of a step.
  void start_rotation(const std::string& newest_name);
  /// Waits for that thread; an error is logged as a warning.
  void end_rotation();
  /// Runs `body`. Reports an error as an event row and a warning, and throws it if the checkpoint
  /// is `required` or too many failed in a row. An error of this rank alone is thrown unchanged.
  template <class Body>
  void try_write(RunState& state, std::int64_t step, bool required, Body&& body);

  Run& run_;
  Recorder& recorder_;
  Log& log_;
  checkpoint::Publisher publish_;
  std::string folder_;
  std::string written_by_;  ///< the program and its libraries
  checkpoint::RetentionPolicy retention_;
  std::int64_t newest_step_;
  Best best_;  ///< The state in best.h5.
  std::optional<ActiveWrite> active_write_;
  std::future<void> rotation_;
  double max_seconds_ = 0;
  int consecutive_failures_ = 0;
};

}  // namespace trireme::train
