#pragma once

#include <cublasLt.h>

#include "operands.hpp"

namespace trireme::ops::cuda {

/// A kind of linear product as cuBLASLt runs it, prepared for good: running it allocates nothing.
class MatrixProduct {
 public:
  /// Throws Failure where the library has no algorithm.
  MatrixProduct(cublasLtHandle_t handle, Problem::Kind kind, const Linear& linear);
  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  /// x, w and y, or their gradients: the kind says which two are read and which is written.
  void run(cudaStream_t stream, void* x, void* w, void* y, Write write, void* workspace) const;

 private:
  cublasLtHandle_t handle_;
  Operands operands_;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace trireme::ops::cuda
