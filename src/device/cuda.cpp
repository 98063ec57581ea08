// SPDX-License-Identifier: Apache-2.0
#include "cuda.hpp"

#include <atomic>

#include "trireme/base/check.hpp"

namespace trireme::cuda {
namespace {

std::atomic<int> last_selected{-1};
thread_local int selected_by_thread = -1;

}  // namespace

void check(cudaError_t error, const char* what) {
  ensure(error == cudaSuccess, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

bool is_of_earlier_work(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure: return true;
    default: return false;
  }
}

cudaError_t select_device(int index) {
  if (selected_by_thread == index) return cudaSuccess;
  const cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) selected_by_thread = last_selected = index;
  return error;
}

cudaError_t select_last_device() {
  const int index = last_selected;
  return index < 0 ? cudaSuccess : select_device(index);
}

std::string pci_bus_id(int index) {
  char text[32] = {};
  check(cudaDeviceGetPCIBusId(text, sizeof text, index), "querying the PCI bus id");
  return text;
}

std::string version_string(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace trireme::cuda
