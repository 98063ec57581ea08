// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <string>

#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/device/launch.hpp"

namespace trireme::ops::cuda {

// The messages of the libraries for a status. Success is 0 in all of them.
inline std::string message_of(cudaError_t status) {
  return std::string("CUDA: ") + cudaGetErrorString(status);
}
inline std::string message_of(cublasStatus_t status) {
  return std::string("cuBLASLt: ") + cublasLtGetStatusString(status);
}
inline std::string message_of(cudnnStatus_t status) {
  return std::string("cuDNN: ") + cudnnGetErrorString(status);
}

/// Throws Failure "`what`: message of the library" unless `status` is success.
template <class Status>
void check(Status status, const char* what) {
  if (status != Status{}) throw Failure(fmt::format("{}: {}", what, message_of(status)));
}

/// Throws Failure if a library could not launch the kernels of `label`: its status says so, or CUDA
/// has an error of this thread that the library did not report.
template <class Status>
void check_launch_by(Status status, const std::string& label) {
  if (status != Status{})
    throw Failure(fmt::format("kernel {} could not be launched: {} ({})", label, message_of(status),
                              static_cast<int>(status)));
  check_launch(label);
}

}  // namespace trireme::ops::cuda
