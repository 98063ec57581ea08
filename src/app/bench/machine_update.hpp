// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "trireme/plan/machine/machine.hpp"

namespace trireme::app {

/// A machine file that measurements make or update.
class MachineUpdate {
 public:
  /// Reads the file if it exists. Without one, or with an empty path, measures the figures that
  /// every machine file needs: a large product, a copy and the gap before an op. Throws InputError
  /// if the file is of a GPU or of another number of threads. Needs Kokkos.
  explicit MachineUpdate(std::string path);

  plan::Machine& machine() { return machine_; }
  /// Returns the origin of a measurement of today by `trireme bench SUBJECT`.
  static plan::Origin origin(const std::string& subject);
  /// Writes the file, if there is a path, and says so.
  void write() const;

 private:
  void measure_basics();
  std::string path_, target_;  // as given, and the file to which it leads
  plan::Machine machine_;
};

}  // namespace trireme::app
