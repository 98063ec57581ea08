#include "cuda.hpp"

#include <atomic>

#include "trireme/base/check.hpp"

namespace trireme::cuda {
namespace {

std::atomic<int> chosen_last{-1};
thread_local int chosen_here = -1;

}  // namespace

void check(cudaError_t error, const char* what) {
  ensure(error == cudaSuccess, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

cudaError_t select(int index) {
  if (chosen_here == index) return cudaSuccess;
  const cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) chosen_here = chosen_last = index;
  return error;
}

cudaError_t select_again() {
  const int index = chosen_last;
  return index < 0 ? cudaSuccess : select(index);
}

std::string pci_bus_id(int index) {
  char text[32] = {};
  check(cudaDeviceGetPCIBusId(text, sizeof text, index), "asking where the device is");
  return text;
}

std::string release_of(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace trireme::cuda
