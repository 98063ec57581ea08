#pragma once

#include <set>
#include <string>

#include "trireme/base/log.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/ops/algorithm_table.hpp"

namespace trireme::train {

/// Reads and writes `<run>/algorithms.txt`: the library algorithms (convolutions, matrix products)
/// that a run has selected.
///
/// A restart selects the same algorithms, at any layout. A problem without a library algorithm is
/// logged once per start, because the program's own kernel may be slower.
class AlgorithmFile {
 public:
  static constexpr const char* name = "algorithms.txt";

  /// Reads the file on rank 0 and adds its entries to `known` on every rank. A missing file adds
  /// nothing; an unreadable file is logged as a warning and ignored. Collective over `world`.
  AlgorithmFile(const comm::Communicator& world, const std::string& run_folder,
                ops::AlgorithmTable& known, Log& log);

  /// Rewrites the file with the algorithms of all ranks if any rank found a new one since the last
  /// call. The lowest rank's choice is kept where ranks differ. A failed write is logged as a
  /// warning. Collective over the world; rank 0 writes.
  void update();

 private:
  void log_missing(const ops::AlgorithmTable& known);

  comm::Communicator world_;
  std::string path_;
  ops::AlgorithmTable& known_;
  ops::AlgorithmTable last_known_;  ///< This rank's algorithms at the last update().
  /// Rank 0: problems that were already logged as left to the program's own kernels.
  std::set<std::string> logged_;
  Log& log_;
};

}  // namespace trireme::train
