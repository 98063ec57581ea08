#pragma once

#include <vector>

#include <cublasLt.h>

#include "operands.hpp"

namespace trireme::ops::cuda {

/// Operands of a product in device memory; `bias` may be null.
struct ProductData {
  void *x = nullptr, *w = nullptr, *y = nullptr, *bias = nullptr;
  /// The largest power of two that divides all of them: what an algorithm may rely on. Up to that of all arenas, whatever lies beyond it: at every layout of a
  /// run the same algorithm is proposed.
  std::int64_t alignment() const;
};

/// A kind of linear product as cuBLASLt runs it, prepared for good: running it allocates nothing.
class MatrixProduct {
 public:
  /// `data`: of its first use; later ones' have the same alignment. `deterministic`: the first algorithm that the library proposes, without a trial.
  /// Throws Failure where the library has none.
  MatrixProduct(cublasLtHandle_t handle, Problem::Kind kind, const Linear& linear, const ProductData& data, bool deterministic);
  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  /// x, w and y, or their gradients: the kind says which two are read and which is written. The first run that writes (=) tries the algorithms
  /// on its operands, and the host waits for that.
  void run(cudaStream_t stream, const ProductData& data, Write write, void* workspace);
  /// Whether a run adds the bias.
  bool adds_bias() const { return adds_bias_; }

 private:
  void propose(std::int64_t alignment, int most);
  cublasStatus_t multiply(cudaStream_t stream, const ProductData& data, Write write, void* workspace, const cublasLtMatmulAlgo_t& algorithm) const;
  void set_bias(const void* bias) const;

  cublasLtHandle_t handle_;
  Operands operands_;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  bool adds_bias_ = false;
  std::vector<cublasLtMatmulHeuristicResult_t> proposals_;  ///< the chosen one is the first; the others go when it has been chosen
};

}  // namespace trireme::ops::cuda
