#pragma once

#include <set>
#include <string>

#include "trireme/base/log.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/ops/algorithm_table.hpp"

namespace trireme::train {

/// `<run>/algorithms.txt`: which algorithms of the device's libraries a run takes, so that its next
/// start, at any layout, takes the same. A problem for which a library has none is told once a
/// start: the program's own kernel may be slower.
class AlgorithmFile {
 public:
  static constexpr const char* name = "algorithms.txt";

  /// To `known`, a rank's own, is added what the starts before found; nothing where there is no
  /// such file, and, said in one line of the log, where it cannot be read. Collective.
  AlgorithmFile(const comm::Communicator& world, const std::string& run_folder,
                ops::AlgorithmTable& known, Log& log);

  /// Writes the file anew with what all ranks know, where any of them has found something since the
  /// last time; where they found different algorithms, the lowest rank's. That it cannot be written
  /// is no reason to stop: one line of the log. Collective; rank 0 writes.
  void update();

 private:
  void log_missing(const ops::AlgorithmTable& known);

  comm::Communicator world_;
  std::string path_;
  ops::AlgorithmTable& known_;
  ops::AlgorithmTable last_known_;  ///< what this rank knew the last time
  std::set<std::string> logged_;    ///< rank 0: left to own kernels
  Log& log_;
};

}  // namespace trireme::train
