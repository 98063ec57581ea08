// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme::comm {

/// Returns the MPI library that the program is linked with and its version, such as "Open MPI
/// v4.1.4". Works before MPI_Init and without a launcher. Throws Failure if MPI does not report it.
std::string mpi_version();

/// Returns the version of the NCCL library that runs, such as "2.27.3"; empty in a build without
/// CUDA. Throws Failure if NCCL does not report it.
std::string nccl_version();

}  // namespace trireme::comm
