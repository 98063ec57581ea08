// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/comm/environment.hpp"

namespace trireme::train {

/// Versions of the program and of the libraries that run. A library that this build does not use
/// has an empty text.
struct SoftwareVersions {
  std::string program;          ///< "0.1.0"
  std::string source_revision;  ///< git revision; "-dirty" after it if files were changed
  std::string compiler, build_type;
  std::string mpi, hdf5, kokkos, onednn, cudnn, nccl;
};

/// Asks the libraries for their versions. Throws Failure if one does not report it.
SoftwareVersions software_versions(const comm::Environment& environment);

}  // namespace trireme::train
