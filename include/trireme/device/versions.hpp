// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme {

/// Returns the version of Kokkos that the program was built with, such as "4.7.01".
std::string kokkos_version();

}  // namespace trireme
