#pragma once

#include <string>
#include <vector>

namespace trireme::monitor {

/// Software, hardware and settings of one start of a run. Empty texts are left out of the file.
struct EnvironmentEntry {
  std::string time;             ///< UTC, "2026-03-01T12:30:05Z"
  std::string restart;          ///< checkpoint from which the run resumes
  std::string command;          ///< the command line
  std::string version;          ///< of Trireme
  std::string source_revision;  ///< git revision; "-dirty" after it if files were changed
  std::string compiler, build_type;
  std::string mpi, hdf5, kokkos, onednn, cuda, cudnn, nccl;  ///< versions
  std::string job;                                           ///< of the batch system, "slurm 4711"
  std::string device;  ///< "cpu: 2 threads a rank", "cuda:0 NVIDIA H200"
  std::string layout;  ///< "data 4 x tensor 1 x pipeline 1"
  std::string seed;
  std::vector<std::string> hosts;  ///< by world rank
};

/// Appends an entry to the JSON array in `path` (environment.json of a run folder); creates the
/// file if it is missing. Called by rank 0 at each start. The file is replaced atomically, so a
/// reader never sees a partial file. A file that is not a JSON array is renamed to `path`.damaged.
/// Throws Failure, or InputError if the path is wrong.
void append_environment(const std::string& path, const EnvironmentEntry& entry);

}  // namespace trireme::monitor
