// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trireme/base/log.hpp"
#include "trireme/monitor/run_folder.hpp"

namespace trireme::monitor {

/// Software, hardware and settings of one start of a run. Empty texts are left out of the file.
struct EnvironmentEntry {
  std::string time;        ///< UTC, "2026-03-01T12:30:05Z"
  std::string command;     ///< the command line of rank 0
  std::string deck;        ///< file of the run folder with the deck, "decks/0003.toml"
  std::string restart;     ///< kind of start: "fresh", "resume", "file" or "weights"
  std::string checkpoint;  ///< file that was loaded
  /// Names and values of the program and its libraries, in order.
  std::vector<std::pair<std::string, std::string>> software;
  std::string driver;  ///< of the GPU
  std::string job;     ///< of the batch system, "slurm 4711"
  std::string device;  ///< of rank 0, as in `devices`
  std::string layout;  ///< "data 4 x tensor 1 x pipeline 1"
  std::string seed;
  std::vector<std::string> hosts;    ///< by world rank
  std::vector<std::string> devices;  ///< by world rank, "cpu AMD EPYC 9654, 4 threads, 754.2 GiB"
};

/// Appends an entry to the JSON array in environment.json; creates the file if it is missing.
/// Called by rank 0 at each start. The file is replaced atomically, so a reader never sees a
/// partial file. A file that is not a JSON array, or would exceed 16 MiB, is renamed to
/// environment.json.damaged with a warning. Throws Failure, or InputError if the folder is wrong.
void append_environment(const RunFolder& folder, const EnvironmentEntry& entry, Log& log);

}  // namespace trireme::monitor
