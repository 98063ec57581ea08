// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// Treatment of processes that a launcher started and MPI does not connect: an error, or a world of
/// one rank for each.
enum class Disconnected { refused, allowed };

/// Returns the rank of this process according to the variables of its launcher, before MPI is
/// started; 0 without a launcher.
int launched_rank();

/// Seconds after which a rank gives up waiting in MPI_Init for the others: 5 times the default of
/// health.watchdog. The environment variable TRIREME_INIT_SECONDS overrides it.
constexpr double max_init_seconds = 600;

/// Owns MPI from startup to process exit. `main` creates one before anything else.
///
/// Calls MPI_Init_thread only under a launcher (mpirun, mpiexec, or srun with PMI).
/// Without a launcher the world is one rank and no MPI function is called,
/// because MPI_Init aborts on some login nodes.
class Environment {
 public:
  /// Starts MPI and creates the world communicator. Collective.
  /// Throws InputError (exit 2) when the launcher started several processes that MPI does not
  /// connect, unless that is allowed. Ends the process with 77 if MPI_Init does not return in
  /// time: a rank that was stopped or lost before would let the others wait forever.
  explicit Environment(Disconnected disconnected = Disconnected::refused);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  const Communicator& world() const { return world_; }
  /// Rank and number of ranks among those on this host.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  const std::string& host() const { return host_; }
  /// Returns the launcher, such as "mpirun of Open MPI" or "srun with PMIx"; "none" without one.
  const std::string& launcher() const { return launched_by_; }
  /// Returns the number of processes that the launcher started. If it exceeds world().size(), MPI
  /// does not connect them.
  int launched_processes() const { return launched_processes_; }
  /// Returns whether any thread may call MPI (MPI_THREAD_MULTIPLE was granted).
  bool thread_multiple() const { return thread_multiple_; }
  /// Returns whether the launcher process that was our parent has died since the start.
  /// Always false when our parent is a shell or a daemon of the batch system.
  bool launcher_gone() const;

  /// Ends the process in order: barrier, MPI_Finalize, flush, _exit(code). Collective.
  /// Every command ends here once all its files are durable. No destructor runs afterwards.
  [[noreturn]] void finalize_and_exit(ExitCode code);
  /// Ends the process when other ranks may hang: calls MPI_Abort, then _exit(code). The process
  /// exits after 10 seconds at the latest. A shell process that stays behind kills the launcher if
  /// it is still alive 10 seconds later: launchers can wait forever for a host that is lost.
  [[noreturn]] void abort(ExitCode code);

 private:
  Communicator world_;
  int local_rank_ = 0, local_size_ = 1;
  std::string host_, launched_by_;
  int launched_processes_ = 1;
  int launcher_pid_ = 0;  ///< process id of the launcher; 0 if unknown
  bool initialized_ = false, thread_multiple_ = false;
};

}  // namespace trireme::comm
