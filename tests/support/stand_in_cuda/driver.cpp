// SPDX-License-Identifier: Apache-2.0
//
// The functions of the CUDA driver that cuDNN calls when it compiles kernels for a graph: it loads
// them and finds one by its name.
//
// cuDNN also looks up other functions without calling them here; STAND_IN_NAME_ONLY defines these,
// and a call is a fault. This library has the soname of the driver, libcuda.so.1. cuda.h is not
// included, because those functions have no arguments here.

#include "record.hpp"
#include "state.hpp"

namespace stand_in {
namespace {

using Result = int;
constexpr Result success = 0, not_supported = 801;

Result give(void** handle) {
  static int thing;
  *handle = &thing;
  return success;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

STAND_IN_API Result cuInit(unsigned) { return success; }

STAND_IN_API Result cuDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return success;
}

STAND_IN_API Result cuDeviceGetCount(int* count) {
  *count = device_count();
  return success;
}

STAND_IN_API Result cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*,
                                      void*, unsigned) {
  return give(library);
}
STAND_IN_API Result cuLibraryGetKernel(void** kernel, void*, const char*) { return give(kernel); }
STAND_IN_API Result cuLibraryUnload(void*) { return success; }

STAND_IN_API Result cuGetErrorString(Result, const char** text) {
  *text = "an error of the stand-in for CUDA";
  return success;
}
STAND_IN_API Result cuGetErrorName(Result error, const char** text) {
  return cuGetErrorString(error, text);
}

/// The driver's private tables, which nothing here needs.
STAND_IN_API Result cuGetExportTable(const void**, const void*) { return not_supported; }

#define STAND_IN_NAME_ONLY(name)                                         \
  STAND_IN_API Result name() {                                           \
    fault("a driver function without implementation is called: " #name); \
    return not_supported;                                                \
  }

STAND_IN_NAME_ONLY(cuCtxGetCurrent)
STAND_IN_NAME_ONLY(cuCtxGetDevice)
STAND_IN_NAME_ONLY(cuCtxGetLimit)
STAND_IN_NAME_ONLY(cuCtxPopCurrent)
STAND_IN_NAME_ONLY(cuCtxPushCurrent)
STAND_IN_NAME_ONLY(cuDeviceGet)
STAND_IN_NAME_ONLY(cuDeviceGetAttribute)
STAND_IN_NAME_ONLY(cuDevicePrimaryCtxRelease)
STAND_IN_NAME_ONLY(cuDevicePrimaryCtxReset)
STAND_IN_NAME_ONLY(cuDevicePrimaryCtxRetain)
STAND_IN_NAME_ONLY(cuFuncGetAttribute)
STAND_IN_NAME_ONLY(cuFuncSetAttribute)
STAND_IN_NAME_ONLY(cuKernelGetAttribute)
STAND_IN_NAME_ONLY(cuKernelSetAttribute)
STAND_IN_NAME_ONLY(cuLaunchCooperativeKernel)
STAND_IN_NAME_ONLY(cuLaunchKernel)
STAND_IN_NAME_ONLY(cuLaunchKernelEx)
STAND_IN_NAME_ONLY(cuLibraryLoadFromFile)
STAND_IN_NAME_ONLY(cuLinkAddData)
STAND_IN_NAME_ONLY(cuLinkAddData_v2)
STAND_IN_NAME_ONLY(cuLinkAddFile_v2)
STAND_IN_NAME_ONLY(cuLinkComplete)
STAND_IN_NAME_ONLY(cuLinkCreate)
STAND_IN_NAME_ONLY(cuLinkCreate_v2)
STAND_IN_NAME_ONLY(cuLinkDestroy)
STAND_IN_NAME_ONLY(cuMemcpyDtoH_v2)
STAND_IN_NAME_ONLY(cuModuleGetFunction)
STAND_IN_NAME_ONLY(cuModuleGetGlobal_v2)
STAND_IN_NAME_ONLY(cuModuleLoadData)
STAND_IN_NAME_ONLY(cuModuleLoadDataEx)
STAND_IN_NAME_ONLY(cuModuleLoadFatBinary)
STAND_IN_NAME_ONLY(cuModuleUnload)
STAND_IN_NAME_ONLY(cuOccupancyMaxActiveBlocksPerMultiprocessor)
STAND_IN_NAME_ONLY(cuOccupancyMaxPotentialClusterSize)
STAND_IN_NAME_ONLY(cuStreamGetCtx)
STAND_IN_NAME_ONLY(cuStreamSynchronize)
STAND_IN_NAME_ONLY(cuTensorMapEncodeIm2col)
STAND_IN_NAME_ONLY(cuTensorMapEncodeTiled)
