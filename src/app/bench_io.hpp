#pragma once

#include <cstdint>
#include <string>

#include "trireme/comm/communicator.hpp"

namespace trireme::app {

struct BenchIoOptions {
  std::string folder = ".";
  std::uint64_t bytes = std::uint64_t{1} << 30;  ///< of the tensors' values, over all ranks
  int rounds = 5;
  bool json = false;
};

/// Writes a training state's worth of tensors in several ways to the same disk, in turns, and
/// prints how fast each was. Collective. What it writes is removed, also where it fails. Throws
/// InputError where the folder or the size cannot be.
void bench_io(const BenchIoOptions& options, const comm::Communicator& world);

}  // namespace trireme::app
