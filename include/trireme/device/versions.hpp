// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme {

/// Returns the version of Kokkos that the program was built with, such as "4.7.01".
std::string kokkos_version();

/// Returns the version of the CUDA runtime that runs, such as "12.8"; empty in a build without
/// CUDA. Needs no driver. Throws Failure if the runtime does not report it.
std::string cuda_version();

}  // namespace trireme
