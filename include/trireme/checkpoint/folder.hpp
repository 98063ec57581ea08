#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/base/log.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

/// "step_000001000.h5"
std::string step_file_name(std::int64_t step);

/// A checkpoint set aside at a start, and why.
struct RejectedFile {
  std::string path, reason;
};
struct CheckpointChoice {
  std::string path;  ///< empty: none that may be gone on from
  std::int64_t step = -1;
  std::vector<RejectedFile> rejected;
  Contents contents;  ///< what the chosen one says of itself
};

/// The newest checkpoint of a folder whose seal (or, of a foreign file, whose structure) is whole;
/// newer damaged ones are listed with the reason. Rank 0 looks, all get the answer. Left-over *.tmp
/// files are never candidates. Nothing is renamed or removed. Throws NewerFormat at one that a
/// newer program wrote: going on from an older one would lose what that one trained.
CheckpointChoice find_newest(const comm::Communicator& world, const std::string& folder);

/// Starts that went on from a checkpoint, in a row, and did not come to a step: restart.json of the
/// run folder.
struct RestartAttempts {
  std::string checkpoint;  ///< name of the file; empty: none
  int starts = 0;
};
/// A checkpoint with so many of them is passed over, as long as there is an older one (as SCR
/// does).
constexpr int max_restart_attempts = 2;

/// What the run folder says; rank 0 reads, all get the answer. Collective.
RestartAttempts read_attempts(const comm::Communicator& world, const std::string& run_folder);
/// This start goes on from a checkpoint: one more. By rank 0; elsewhere it does nothing.
void count_attempt(const comm::Communicator& world, const std::string& run_folder,
                   const std::string& checkpoint);
/// This start came to a step. By rank 0; elsewhere it does nothing.
void clear_attempts(const comm::Communicator& world, const std::string& run_folder);
/// Where the choice was tried too often and an older one is whole, that one; the other is renamed
/// to <name>.failed. Collective.
CheckpointChoice skip_failed_checkpoint(const comm::Communicator& world,
                                        const std::string& run_folder,
                                        const CheckpointChoice& newest, Log& log);

/// Removes what killed starts left half written, *.h5.tmp, so that it takes no room any more. Rank
/// 0 acts, while no checkpoint is being written.
void remove_leftovers(const comm::Communicator& world, const std::string& folder);

/// Renames files set aside to <name>.damaged (never deletes). Rank 0 acts.
void rename_damaged(const comm::Communicator& world, const std::vector<RejectedFile>& rejected,
                    Log& log);

/// Moves all checkpoints of a run into checkpoints/before-<timestamp>/ (for `--restart none`). Rank
/// 0 acts.
void archive_checkpoints(const comm::Communicator& world, const std::string& folder, Log& log);

/// Which checkpoints stay.
struct RetentionPolicy {
  int newest = 3;
  double every_steps =
      0;  ///< of those at or past each multiple of so many steps the first; 0: none
};

/// Removes the step files that `keep` does not name, and left-over *.tmp files; `protect` stays. By
/// one rank, after the new one is sealed and while none is being written.
void rotate(const std::string& folder, const RetentionPolicy& keep, const std::string& protect);

/// After how long a heartbeat that nobody renews is nobody's, and how often it is renewed.
struct LeaseTimes {
  double stale_seconds = 60, renewal_seconds = 10;
};

/// One run folder belongs to one job at a time: run.lock names host, process with start time,
/// scheduler's job, heartbeat. Held by rank 0's process, whose heartbeat a thread of its own
/// renews, however long a step or a checkpoint takes. Taken over when the process is gone (same
/// host) or the scheduler says that its job is over; else when the heartbeat is stale and does not
/// change while it is watched. InputError where it is held.
class Lease {
 public:
  Lease();
  /// Collective; rank 0 acts, all get its answer. Throws InputError naming the holder.
  Lease(const comm::Communicator& world, const std::string& run_folder, Log& log,
        const LeaseTimes& times = {});
  ~Lease();
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) noexcept;
  /// Throws Failure where another job has taken the lease over, or the folder is gone. Cheap:
  /// called once a step.
  void check() const;
  void release();

 private:
  struct Renewer;
  std::unique_ptr<Renewer> renewer_;
};

/// exit.json of the run folder: {start, code, reason, step, checkpoint}.
struct ExitRecord {
  std::string start;
  ExitCode code = ExitCode::done;
  std::string reason;
  std::int64_t step = 0;
  std::string checkpoint;
};
void remove_exit_record(const std::string& run_folder);
/// Written to a temporary name and renamed.
void write_exit_record(const std::string& run_folder, const ExitRecord& record);
/// The text of exit.json; none where it is missing, or no file.
std::optional<std::string> read_exit_record(const std::string& run_folder);

}  // namespace trireme::checkpoint
