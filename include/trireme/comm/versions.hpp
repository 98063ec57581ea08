// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme::comm {

/// Returns the version of the NCCL library that runs, such as "2.27.3"; empty in a build without
/// CUDA. Throws Failure if NCCL does not report it.
std::string nccl_version();

}  // namespace trireme::comm
