// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace trireme::cuda {

/// Throws Failure "CUDA: `what`: CUDA's description" unless `error` is cudaSuccess.
void check(cudaError_t error, const char* what);

/// Returns whether an error means that work failed which the device has already begun. CUDA then
/// reports it in every later call of the process.
bool is_of_earlier_work(cudaError_t error);

/// Selects the device for later CUDA calls of this thread. Cheap if it is already selected. A
/// thread that never selects works on device 0: its first call would create a context of half a
/// gigabyte there, even if the rank uses another device.
cudaError_t select_device(int index);
/// Selects the device that any thread of this process selected last. A process works on one device.
cudaError_t select_last_device();

/// Returns "0000:19:00.0". Throws Failure.
std::string pci_bus_id(int index);

/// Converts CUDA's version number 13000 to "13.0".
std::string version_string(int version);

}  // namespace trireme::cuda
