// SPDX-License-Identifier: Apache-2.0
//
// The rank of this process from the variables of Open MPI, PMIx, PMI and Slurm.
#include "trireme/comm/environment.hpp"

#include <cstdlib>
#include <initializer_list>

namespace trireme::comm {

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  const char* rank = std::getenv("SLURM_STEP_ID") ? std::getenv("SLURM_PROCID") : nullptr;
  return rank ? std::atoi(rank) : 0;
}

}  // namespace trireme::comm
