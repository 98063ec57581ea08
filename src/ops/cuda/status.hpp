#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "trireme/base/check.hpp"

namespace trireme::ops::cuda {

// Throw Failure with the name of the call that failed and the library's message.
inline void check(cudaError_t status, const char* what) {
  ensure(status == cudaSuccess, "{}: CUDA: {}", what, cudaGetErrorString(status));
}
inline void check(cublasStatus_t status, const char* what) {
  ensure(status == CUBLAS_STATUS_SUCCESS, "{}: cuBLASLt: {}", what,
         cublasLtGetStatusString(status));
}
inline void check(cudnnStatus_t status, const char* what) {
  ensure(status == CUDNN_STATUS_SUCCESS, "{}: cuDNN: {}", what, cudnnGetErrorString(status));
}

}  // namespace trireme::ops::cuda
