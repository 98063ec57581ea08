// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <unistd.h>

#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

/// A flag that any thread of a rank can raise for the other ranks of this host without MPI: a file.
class CrossRankFlag {
 public:
  /// Collective over `world`.
  explicit CrossRankFlag(const Communicator& world)
      : owner_(world.rank() == 0),
        path_(world.broadcast((std::filesystem::temp_directory_path() /
                               ("trireme-flag-" + std::to_string(::getpid())))
                                  .string(),
                              0)) {
    if (owner_) std::filesystem::remove(path_);
    world.barrier();
  }
  ~CrossRankFlag() {
    std::error_code ignored;
    if (owner_) std::filesystem::remove(path_, ignored);
  }
  CrossRankFlag(const CrossRankFlag&) = delete;
  CrossRankFlag& operator=(const CrossRankFlag&) = delete;

  void raise() const { std::ofstream file(path_); }
  void wait() const {
    while (!std::filesystem::exists(path_))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  bool owner_;
  std::string path_;
};

}  // namespace trireme::comm
