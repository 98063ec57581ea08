// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/communicator.hpp"

namespace trireme::app {

/// Options of `trireme bench io`.
struct BenchIoOptions {
  std::string folder = ".";
  std::uint64_t bytes = std::uint64_t{1} << 30;  ///< bytes of all tensors, over all ranks
  int rounds = 5;
  bool json = false;
};

/// Writes a training state to one folder in several ways, in turns, and prints the speed of each.
/// Collective. Removes its files, also after an error. Throws InputError if the folder does not
/// exist, or the size is too small or does not fit.
void bench_io(const BenchIoOptions& options, const comm::Communicator& world);

}  // namespace trireme::app
