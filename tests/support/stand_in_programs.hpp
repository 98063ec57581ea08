// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <fstream>

#include "scratch.hpp"

namespace trireme::test {

/// A folder of shell scripts at the front of PATH, which replace commands such as squeue. Also
/// removes the environment variables of batch jobs. The destructor restores PATH.
class StandInPrograms {
 public:
  StandInPrograms() : path_(std::getenv("PATH")) {
    setenv("PATH", (folder_.path() + ":" + path_).c_str(), 1);
    unset_job_variables();
  }
  ~StandInPrograms() {
    unset_job_variables();
    setenv("PATH", path_.c_str(), 1);
  }
  StandInPrograms(const StandInPrograms&) = delete;
  StandInPrograms& operator=(const StandInPrograms&) = delete;

  /// Adds the program `name`: a shell script with these lines.
  void add(const std::string& name, const std::string& lines) const {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << lines << "\n";
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }

  /// Removes the environment variables of all batch systems.
  static void unset_job_variables() {
    for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_END_TIME", "PBS_JOBID", "LSB_JOBID",
                             "LSB_JOBINDEX", "FLUX_URI", "FLUX_JOB_ID"})
      unsetenv(name);
  }

 private:
  ScratchFolder folder_;
  std::string path_;
};

}  // namespace trireme::test
