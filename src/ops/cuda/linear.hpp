#pragma once

#include <vector>

#include <cublasLt.h>

#include "algorithm_entry.hpp"
#include "operands.hpp"

namespace trireme::ops::cuda {

/// Operands of a product and of its epilogue in device memory; `vector`, `matrix` and `added` may
/// be null. Of float8 the two operands' inverse scales.
struct ProductData {
  void *x = nullptr, *w = nullptr, *y = nullptr, *vector = nullptr, *matrix = nullptr,
       *added = nullptr;
  const void *first_inverse = nullptr, *second_inverse = nullptr;
  void*& pointer(const Operand& operand) {
    return operand.source == Operand::Source::x ? x : operand.source == Operand::Source::w ? w : y;
  }
  void* pointer(const Operand& operand) const {
    return operand.source == Operand::Source::x ? x : operand.source == Operand::Source::w ? w : y;
  }
  /// The two operands are tensors of codes (float8.hpp): their scales and the codes.
  void split_codes(const Operands& operands);
  /// The largest power of two that divides all of them: what an algorithm may rely on. Up to that
  /// of all arenas, whatever lies beyond it: at every layout of a run the same algorithm is
  /// proposed.
  std::int64_t alignment() const;
};

/// A kind of linear product as cuBLASLt runs it, prepared for good: running it allocates nothing.
class MatrixProduct {
 public:
  struct Options {
    bool deterministic = false;  ///< the first algorithm that the library proposes, without a trial
    bool tfloat32 = false;       ///< float32 operands may lose bits to the tensor cores
  };
  /// `data`: of its first use; later ones' have the same alignment, and of vector and matrix the
  /// same are null. `choice`: of its algorithm.
  MatrixProduct(cublasLtHandle_t handle, Problem::Kind kind, Epilogue epilogue,
                const Linear& linear, const ProductData& data, Options options,
                AlgorithmEntry entry);
  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  /// Launches it on x, w and y, or their gradients: the kind says which two are read and which is
  /// written. The first run that writes (=) tries the algorithms on its operands, and the host
  /// waits for that. `workspace` is its until it has run. False, and nothing is done, where the
  /// library has no algorithm with such an epilogue; throws Failure where it has none at all.
  bool run(const Stream& stream, const ProductData& data, Write write, void* workspace);

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) const;
  void set_pointers(const ProductData& data) const;
  void propose(std::int64_t alignment, int limit);
  bool use_known_algorithm();
  cublasStatus_t multiply(const Stream& stream, const ProductData& data, Write write,
                          void* workspace, const cublasLtMatmulAlgo_t& algorithm) const;

  cublasLtHandle_t handle_;
  Operands operands_;
  bool no_epilogue_;                ///< without epilogue
  bool algorithm_settled_ = false;  ///< the one proposal left has been run
  AlgorithmEntry entry_;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t>
      proposals_;  ///< the chosen one is the first; the others go when it has been chosen
};

}  // namespace trireme::ops::cuda
