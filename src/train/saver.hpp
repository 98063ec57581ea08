#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "trireme/base/log.hpp"
#include "trireme/checkpoint/background.hpp"
#include "trireme/train/recorder.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/run_state.hpp"

namespace trireme::train {

/// Writes a run's checkpoints, one at a time: with checkpoint.async by a thread while steps go on,
/// else at once. One that cannot be written leaves the older ones as they are, an event and a
/// warning, and the run goes on; where several in a row cannot, or one that the run may not end
/// without, the error is thrown. Every call that takes a state is collective over the world. Where
/// the best could not be written, the state's best becomes again that of best.h5.
class Saver {
 public:
  /// `newest`: step of the newest checkpoint in the run's folder; -1: none.
  Saver(Run& run, const RunState& state, std::int64_t newest, Recorder& recorder, Log& log);

  /// Begins a checkpoint of this state. `best`: best.h5 becomes a second name of it.
  void save(RunState& state, bool best);
  /// A checkpoint of this state that is there when the call returns; nothing to do where it is
  /// there already. Throws where it cannot be written.
  void save_now(RunState& state, bool best);
  /// best.h5 alone.
  void save_best(RunState& state);
  /// Between two steps: goes on with the checkpoint under way, where `busy` says that no rank's
  /// thread is still at its part.
  void advance(RunState& state, bool busy);
  /// Waits until the checkpoint under way is in place.
  void wait_until_published(RunState& state);
  /// The run is put back to this checkpoint, the newest.
  void rolled_back(std::int64_t step) { newest_step_ = step; }

  /// Whether this rank's thread is at work: the wish wish_saving of the next step.
  bool busy() const { return active_write_ && active_write_->file->busy(); }
  /// Step of the newest checkpoint that is in place; -1: none.
  std::int64_t newest_step() const { return newest_step_; }
  /// What the longest checkpoint took so far, threads and all.
  double max_seconds() const { return max_seconds_; }

 private:
  /// What a checkpoint is to become.
  struct Target {
    RunState state;
    bool becomes_best = false;  ///< best.h5 is to be this one
    bool best_only = false;     ///< and nothing else
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
  /// Nothing is under way any more and no gradient is: the replica may be read.
  void quiesce(RunState& state);
  void begin(RunState& state, bool best, bool alone);
  void write(RunState& state, bool best, bool alone);
  void published(const Target& target, const checkpoint::WriteReport& report, double stall_seconds);
  void link_best(const RunState& state);
  /// Rank 0 removes by a thread what rotation does not keep: of a large file that may take a file
  /// system a good part of a step.
  void start_rotation(const std::string& newest_name);
  /// Waits for it; what went wrong is a warning.
  void end_rotation();
  /// Runs `body`; what it throws is an event and a warning, and thrown on where it is `required` or
  /// one too many.
  template <class Body>
  void try_write(RunState& state, std::int64_t step, bool required, Body&& body);

  Run& run_;
  Recorder& recorder_;
  Log& log_;
  std::string folder_;
  double keep_every_steps_ = 0;
  std::int64_t newest_step_;
  Best best_;  ///< what best.h5 is of
  std::optional<ActiveWrite> active_write_;
  std::future<void> rotation_;
  double max_seconds_ = 0;
  int consecutive_failures_ = 0;
};

}  // namespace trireme::train
