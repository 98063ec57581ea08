#pragma once

#include <string>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// MPI from construction to the way out. MPI_Init_thread is called only under a launcher (mpirun,
/// srun with PMI); else the world is one rank and MPI is not touched (MPI_Init aborts on some login
/// nodes).
class Environment {
 public:
  Environment();
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  const Communicator& world() const { return world_; }
  /// Rank and size among the ranks of this host.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  const std::string& host() const { return host_; }
  /// Whether MPI may be called from any thread (MPI_THREAD_MULTIPLE was granted).
  bool thread_multiple() const { return thread_multiple_; }
  /// Whether the launcher, or its part on this host, was there at the start and is no more. False
  /// where a shell or a batch system's own part stands between.
  bool launcher_gone() const;
  /// "Open MPI v4.1.4", "none".
  std::string library() const;

  /// The way out of every command, once all work is durable: barrier, MPI_Finalize, flush,
  /// _exit(code). No destructor runs after it.
  [[noreturn]] void finalize_and_exit(ExitCode code);
  /// The way out for a rank whose peers may be stuck: MPI_Abort(code) under a deadline, then
  /// _exit(code). A launcher that still waits ten seconds later, for a host that does not answer,
  /// is ended by a process that is left behind for that.
  [[noreturn]] void abort(ExitCode code);

 private:
  Communicator world_;
  int local_rank_ = 0, local_size_ = 1;
  std::string host_;
  int launcher_pid_ = 0;  ///< its process; 0: none
  bool initialized_ = false, thread_multiple_ = false;
};

}  // namespace trireme::comm
