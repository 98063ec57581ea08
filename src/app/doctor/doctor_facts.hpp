// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/host_facts.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/device/device_facts.hpp"
#include "trireme/io/folder_facts.hpp"
#include "trireme/train/records/software_versions.hpp"

namespace trireme::app {

/// Facts about one rank.
struct RankFacts {
  std::string host;
  int threads = 0;                  ///< that compute on the CPU; 1 if the rank has a GPU
  std::string threads_error;        ///< a variable that sets the number of threads is wrong
  std::vector<int> cores;           ///< logical cores that the rank may use
  std::vector<int> physical_cores;  ///< of each of them, as physical_core_of() returns
  /// False if OpenMP binds the main thread, whose cores are then not those of the rank.
  bool cores_are_known = true;
  std::string gpu;  ///< identity of the GPU that the rank would use; empty without one
  int visible_gpus = 0;
};

/// Facts about one node.
struct NodeFacts {
  HostFacts host;
  std::string processor;
  train::SoftwareVersions versions;
  DeviceFacts devices;
  io::FolderFacts folder;
  /// True if this node sees a file that rank 0 creates in the folder; none if that was not tried.
  std::optional<bool> sees_file_of_rank_0;
  std::string hdf5_locking;  ///< HDF5_USE_FILE_LOCKING; empty if it is not set
  int batch_cores = 0;       ///< cores of the node that Slurm allocated to the job; 0 if unknown
  int cores_per_task = 0;    ///< --cpus-per-task of Slurm; 0 if not set
};

/// Facts about the job, from rank 0.
struct JobFacts {
  std::string launcher;
  int launched_processes = 1;
  int world_size = 1;
  bool thread_multiple = true;         ///< MPI_THREAD_MULTIPLE was granted, or there is no MPI
  int tasks_of_job = 0;                ///< SLURM_NTASKS; 0 outside of Slurm
  std::string batch_job;               ///< "Slurm job 4711"; empty outside of a batch job
  std::optional<double> seconds_left;  ///< until the batch system ends the job
};

/// All that `trireme doctor` finds out.
struct MachineFacts {
  JobFacts job;
  std::vector<NodeFacts> nodes;
  std::vector<RankFacts> ranks;  ///< by world rank
};

/// Arguments of `trireme doctor`.
struct DoctorOptions {
  std::string folder = ".";
  std::uint64_t bytes = std::uint64_t{64} << 20;  ///< of the speed test; 0: none
  bool json = false;
};

/// Examines this machine: every rank itself, one rank of each node the node and the folder.
/// Collective; only rank 0 receives the facts. Throws InputError if the folder is missing on all
/// nodes.
MachineFacts examine_machine(const comm::Environment& environment, const DoctorOptions& options);

/// Returns the facts as a JSON object.
std::string to_json(const MachineFacts& facts);

}  // namespace trireme::app
