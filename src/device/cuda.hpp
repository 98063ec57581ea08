#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace trireme::cuda {

/// Throws Failure: "CUDA: `what`: CUDA's own sentence".
void check(cudaError_t error, const char* what);

/// This thread's calls of CUDA go to the device from now on. A thread that never chose is at device
/// 0, and its first call would make a context there, half a gigabyte, also where the rank works on
/// another one.
cudaError_t select_device(int index);
/// The device that a thread of this process chose last: a process works on one.
cudaError_t select_last_device();

/// "0000:19:00.0". Throws Failure.
std::string pci_bus_id(int index);

/// A version as CUDA numbers it, 13000, as people do: "13.0".
std::string version_string(int version);

}  // namespace trireme::cuda
