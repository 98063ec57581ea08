// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme::ops {

/// Returns the version of the oneDNN library that runs, such as "3.7.1".
std::string onednn_version();

/// Returns the version of the cuDNN library that runs, such as "9.19.0"; empty in a build without
/// CUDA.
std::string cudnn_version();

}  // namespace trireme::ops
