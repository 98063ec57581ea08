// SPDX-License-Identifier: Apache-2.0
//
// The library of a build without CUDA: making it throws Failure.

#include "library.hpp"
#include "trireme/base/error.hpp"
#include "trireme/ops/versions.hpp"

namespace trireme::ops {

std::string cudnn_version() { return ""; }

namespace cuda {

std::unique_ptr<Library> make_library(const Stream&, ContextOptions, AlgorithmTable&) {
  throw Failure("this program was built without CUDA (preset cuda-release has it)");
}

}  // namespace cuda
}  // namespace trireme::ops
