// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "mpi.hpp"

namespace trireme::test {

/// A temporary folder for all ranks, removed by the destructor. Constructor and destructor are
/// collective.
struct SharedFolder {
  std::string path;
  SharedFolder() {
    const comm::Communicator& world = test_environment().world();
    std::string name = (std::filesystem::temp_directory_path() / "trireme-mpi-XXXXXX").string();
    if (world.rank() == 0 && ::mkdtemp(name.data()) == nullptr) std::abort();
    path = world.broadcast(name, 0);
  }
  ~SharedFolder() {
    const comm::Communicator& world = test_environment().world();
    world.barrier();
    if (world.rank() == 0) std::filesystem::remove_all(path);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
};

}  // namespace trireme::test
