// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

/// Returns the file name of the checkpoint of a step: "step_000001000.h5".
std::string step_file_name(std::int64_t step);

/// Returns the file name of the newest step checkpoint of a folder, by name alone; "" if there is
/// none or the folder cannot be read.
std::string newest_checkpoint_name(const std::string& folder);

/// Returns whether a folder has a file named like a checkpoint of a run: step_*.h5 or best.h5.
bool has_checkpoints(const std::string& folder);

/// A checkpoint that a restart or a rollback does not use, and the reason.
struct RejectedFile {
  std::string path, reason;
  bool is_damaged = true;  ///< false: intact, but the caller of find_newest() refused it
};
/// The checkpoint from which a run resumes.
struct CheckpointChoice {
  std::string path;  ///< empty: there is no usable checkpoint
  std::int64_t step = -1;
  std::vector<RejectedFile> rejected;
  Contents contents;  ///< contents of the chosen file
};

/// Returns the newest usable checkpoint of a folder and the damaged newer ones. Collective: rank 0
/// reads every byte of the candidates, all ranks get the result. A file with a seal must be intact;
/// an untrusted file must have a valid structure. Ignores *.tmp files. Renames and removes nothing.
/// Throws NewerFormat if a newer program wrote the file: resuming from an older checkpoint would
/// lose that training.
///
/// `refuse` returns why an intact checkpoint is not used; "" if it is. Such a file is rejected too,
/// as not damaged. If it refuses all, the result is that without it.
CheckpointChoice find_newest(const comm::Communicator& world, const std::string& folder,
                             const std::function<std::string(const Info&)>& refuse = nullptr);

/// Number of consecutive starts that resumed from a checkpoint and ended before their first step.
/// Stored in restart.json of the run folder.
struct RestartAttempts {
  std::string checkpoint;  ///< file name; empty: none
  int starts = 0;
};
/// A checkpoint with this many failed starts is skipped if an older one exists (SCR, the Scalable
/// Checkpoint/Restart library, has the same rule).
constexpr int max_restart_attempts = 2;

/// Returns the attempts that restart.json counts; none if the file is missing or invalid.
/// Collective.
RestartAttempts read_attempts(const comm::Communicator& world, const std::string& run_folder);
/// Counts one more start from `checkpoint`. Rank 0 writes the file. Collective.
void count_attempt(const comm::Communicator& world, const std::string& run_folder,
                   const std::string& checkpoint);
/// Removes restart.json, after the first step. Only rank 0 acts; not collective.
void clear_attempts(const comm::Communicator& world, const std::string& run_folder);
/// Returns `newest`, or an older usable checkpoint if `newest` failed too often. In that case
/// renames the newer file to <name>.failed. Collective.
CheckpointChoice skip_failed_checkpoint(const comm::Communicator& world,
                                        const std::string& run_folder,
                                        const CheckpointChoice& newest, Log& log);

/// Removes the temporary files (*.h5.tmp) of killed starts to free disk space. Renames a folder of
/// such a name to NAME.damaged with a warning: no checkpoint could be written there. Rank 0 acts.
/// Collective; must not run while a checkpoint is written.
void remove_leftovers(const comm::Communicator& world, const std::string& folder, Log& log);

/// Renames damaged checkpoints to <name>.damaged, and refused ones to <name>.failed; never deletes
/// them. Rank 0 acts. Collective.
void rename_rejected(const comm::Communicator& world, const std::vector<RejectedFile>& rejected,
                     Log& log);

/// Moves all checkpoints of a run to checkpoints/before-<timestamp>/, for a start that does not use
/// them. Rank 0 acts. Collective.
void archive_checkpoints(const comm::Communicator& world, const std::string& folder, Log& log);

/// The checkpoints that rotate() keeps.
struct RetentionPolicy {
  /// Number of newest checkpoints to keep.
  int newest = 3;
  /// Returns how many intervals a run completes up to a step. The first checkpoint after each of
  /// them is kept too; null: none.
  std::function<std::int64_t(std::int64_t step)> intervals_up_to = nullptr;
};

/// Removes the step checkpoints that `keep` does not select, and *.h5.tmp files. Never removes
/// `protect`. Called by one rank, after the new checkpoint is published and while none is written.
void rotate(const std::string& folder, const RetentionPolicy& keep, const std::string& protect);

/// A heartbeat that was not renewed for stale_seconds is stale. The owner renews it every
/// renewal_seconds, and looks every look_seconds whether run.lock is still its own.
struct LeaseTimes {
  double stale_seconds = 60, renewal_seconds = 10, look_seconds = 1;
};

/// Words for the messages of a lease: what the folder is, and how a second job avoids it.
struct LeaseWords {
  std::string folder = "run folder", remedy = "set another run.folder";
};

/// Exclusive ownership of a folder by one job, held in the file run.lock. The file names host,
/// process, scheduler job and the time of the last heartbeat. A thread of rank 0's process renews
/// the heartbeat, so a long step or checkpoint does not delay it.
///
/// A lease of another job is taken over in three cases:
/// - its process ran on this host and has exited;
/// - the scheduler reports that its job is over;
/// - its heartbeat is stale and does not change while this process watches it.
///
/// A job whose run.lock is removed creates it again. A job that finds the lease of another one has
/// lost its own: it must write nothing more, and no line of it goes to the file of its log.
class Lease {
 public:
  Lease();
  /// Acquires the lease. Collective: rank 0 acts, all ranks get its result. May wait up to
  /// stale_seconds for the heartbeat of another job. Throws InputError naming the holder if the
  /// lease is held, Failure if the file cannot be written.
  Lease(const comm::Communicator& world, const std::string& folder, Log& log,
        const LeaseTimes& times = {}, const LeaseWords& words = {});
  /// Releases the lease; ignores errors.
  ~Lease();
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  /// Throws Failure unless is_held(). Called once a step.
  void check() const;
  /// Returns false if another job has taken over the lease or the folder no longer exists. Reads a
  /// flag that the thread has set, or run.lock if the thread has not looked for several periods:
  /// then this process was stopped. Always true on ranks other than 0.
  bool is_held() const;
  /// Returns the same after reading run.lock, on every rank. Called before what cannot be undone.
  bool confirm() const;
  /// Stops the thread and removes run.lock if it still belongs to this process.
  void release();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Waits for run.lock if a run folder has a log, but neither run.lock nor exit.json: somebody may
/// have removed the lease of a running job, which creates it again. Waits at most two periods of
/// looking. Collective; rank 0 acts.
void wait_for_removed_lease(const comm::Communicator& world, const std::string& run_folder,
                            Log& log, const LeaseTimes& times = {});

/// Content of exit.json in the run folder: how and where the last start ended.
struct ExitRecord {
  std::string start;
  ExitCode code = ExitCode::done;
  std::string reason;
  std::int64_t step = 0;
};
/// Removes exit.json if it exists. Throws Failure if it cannot be removed.
void remove_exit_record(const std::string& run_folder);
/// Writes exit.json atomically (temporary name, then rename). Adds the newest checkpoint that
/// exists.
void write_exit_record(const std::string& run_folder, const ExitRecord& record);

}  // namespace trireme::checkpoint
