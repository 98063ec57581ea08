// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>
#include <string>

#include "trireme/base/log.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/ops/algorithm_table.hpp"

namespace trireme::train {

/// Reads and writes `<run>/algorithms.txt`: the library algorithms (convolutions, matrix products)
/// that a run has selected. Also reads and extends a file that runs share (TRIREME_ALGORITHMS).
///
/// A restart selects the same algorithms, at any layout: its own file counts before the shared one.
/// A problem without a library algorithm is logged once per start, because the program's own kernel
/// may be slower.
///
///   constructor   algorithms.txt, then the shared file -> known
///   update()      known of all ranks -> algorithms.txt
///                 shared file locked, read again, missing lines added, replaced by rename
class AlgorithmFile {
 public:
  /// The environment variable that names the shared file.
  static constexpr const char* shared_variable = "TRIREME_ALGORITHMS";

  /// Returns the path of the shared file; "" if the variable is not set.
  static std::string shared_path_from_environment();

  /// Reads the files on rank 0 and adds their entries to `known` on every rank. `shared_path`: of
  /// the shared file, "" without one; counts on rank 0 only. A missing file adds nothing; an
  /// unreadable file is logged as a warning and ignored. Collective over `world`.
  AlgorithmFile(const comm::Communicator& world, const std::string& run_folder,
                const std::string& shared_path, ops::AlgorithmTable& known, Log& log);

  /// Rewrites algorithms.txt with the algorithms of all ranks if any rank found a new one since the
  /// last call, and adds them to the shared file. The lowest rank's choice is kept where ranks
  /// differ, and the shared file's where it has one. A failed write is logged as a warning. A
  /// shared file that was locked or not writable is tried again at calls that become rarer, and
  /// logged once. Collective over the world; rank 0 writes.
  void update();

 private:
  ops::AlgorithmTable read(const std::function<ops::AlgorithmTable()>& read_file);
  void log_own_kernels(const ops::AlgorithmTable& known);
  void add_to_shared();

  comm::Communicator world_;
  std::string path_, shared_path_;
  ops::AlgorithmTable& known_;
  ops::AlgorithmTable last_known_;  ///< This rank's algorithms at the last update().
  /// Rank 0: problems that were already logged as left to the program's own kernels.
  std::set<std::string> logged_;
  /// Rank 0: the algorithms of all ranks. The shared file lacks some of them; that it cannot be
  /// written was logged.
  ops::AlgorithmTable all_;
  bool shared_is_behind_ = false, logged_failure_ = false;
  /// Rank 0: update() skips so many calls before it tries to write the shared file again.
  int calls_until_retry_ = 0, calls_between_retries_ = 1;
  Log& log_;
};

}  // namespace trireme::train
