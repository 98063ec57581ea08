// SPDX-License-Identifier: Apache-2.0
#include "trireme/device/device.hpp"

#include "trireme/device/versions.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include "cuda.hpp"
#endif

namespace trireme {
namespace {

#if defined(TRIREME_ENABLE_CUDA)
/// Returns the cause of a driver problem. CUDA's own description says "driver version is
/// insufficient" also if there is no driver at all.
std::string driver_problem(cudaError_t error) {
  int driver = 0, runtime = 0;
  const bool known = cudaDriverGetVersion(&driver) == cudaSuccess &&
                     cudaRuntimeGetVersion(&runtime) == cudaSuccess;
  if (error != cudaErrorInsufficientDriver || !known) return cudaGetErrorString(error);
  if (driver == 0)
    return "no NVIDIA driver on this machine (its library libcuda.so.1 is not found)";
  return "the NVIDIA driver supports CUDA " + cuda::version_string(driver) +
         ", this program was built with " + cuda::version_string(runtime);
}
#endif

}  // namespace

std::string to_string(Device device) {
  switch (device.kind) {
    case DeviceKind::meta: return "meta";
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return "cuda:" + std::to_string(device.index);
    case DeviceKind::emulated: return "emulated:" + std::to_string(device.index);
  }
  return "?";
}

bool built_with_cuda() {
#if defined(TRIREME_ENABLE_CUDA)
  return true;
#else
  return false;
#endif
}

std::string cuda_version() {
#if defined(TRIREME_ENABLE_CUDA)
  int runtime = 0;
  cuda::check(cudaRuntimeGetVersion(&runtime), "querying the runtime version");
  return cuda::version_string(runtime);
#else
  return "";
#endif
}

int cuda_device_count(std::string* why) {
#if defined(TRIREME_ENABLE_CUDA)
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  if (why != nullptr)
    *why = error == cudaSuccess ? "the NVIDIA driver lists no device" : driver_problem(error);
#else
  if (why != nullptr) *why = "this program was built without CUDA (preset cuda-release has it)";
#endif
  return 0;
}

}  // namespace trireme
