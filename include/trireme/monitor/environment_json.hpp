#pragma once

#include <string>
#include <vector>

namespace trireme::monitor {

/// What one start of a run ran with. A text that is empty is left out of the file.
struct EnvironmentEntry {
  std::string time;             ///< UTC, "2026-03-01T12:30:05Z"
  std::string restart;          ///< checkpoint gone on from
  std::string command;          ///< the command line
  std::string version;          ///< of trireme
  std::string source_revision;  ///< as git names it; "-dirty" where files were changed
  std::string compiler, build_type;
  std::string mpi, hdf5, kokkos, onednn, cuda, cudnn, nccl;  ///< versions
  std::string job;                                           ///< the scheduler's, "slurm 4711"
  std::string device;  ///< "cpu: 2 threads a rank", "cuda:0 NVIDIA H200"
  std::string layout;  ///< "data 4 x tensor 1 x pipeline 1"
  std::string seed;
  std::vector<std::string> hosts;  ///< by world rank
};

/// Appends an entry to the JSON array in `path` (environment.json of a run folder), made where
/// missing; the file is replaced at once, so a reader never sees half of it. A file that is no JSON
/// array is kept under `path`.damaged. Throws Failure.
void append_environment(const std::string& path, const EnvironmentEntry& entry);

}  // namespace trireme::monitor
