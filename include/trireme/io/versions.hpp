// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme::io {

/// Returns the version of the HDF5 library that runs, such as "1.14.6". Throws Failure if HDF5 does
/// not report it.
std::string hdf5_version();

}  // namespace trireme::io
