// The library of a build without CUDA: making it throws Failure.

#include "library.hpp"
#include "trireme/base/error.hpp"

namespace trireme::ops::cuda {

std::unique_ptr<Library> make_library(const Stream&, ContextOptions, AlgorithmTable&) {
  throw Failure("this program was built without CUDA (preset cuda-release has it)");
}

}  // namespace trireme::ops::cuda
