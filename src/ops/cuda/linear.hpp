// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <cublasLt.h>

#include "algorithm_entry.hpp"
#include "operands.hpp"

namespace trireme::ops::cuda {

class Trials;

/// Device pointers of a product and of its epilogue. `vector`, `matrix` and `added` may be null.
/// The inverse scales are those of the first and the second operand in float8.
struct ProductData {
  void *x = nullptr, *w = nullptr, *y = nullptr, *vector = nullptr, *matrix = nullptr,
       *added = nullptr;
  const void *first_inverse = nullptr, *second_inverse = nullptr;
  /// Returns the pointer of the tensor that an operand refers to.
  void*& pointer(const Operand& operand) {
    return operand.source == Operand::Source::x ? x : operand.source == Operand::Source::w ? w : y;
  }
  void* pointer(const Operand& operand) const {
    return operand.source == Operand::Source::x ? x : operand.source == Operand::Source::w ? w : y;
  }
  /// Splits float8 operands (float8.hpp) into scale and codes: both operand pointers then refer to
  /// the codes.
  void split_codes(const Operands& operands);
  /// Returns the largest power of two, at most Arena::alignment, that divides all pointers.
  /// Algorithms may rely on it. The limit makes cuBLASLt propose the same algorithms for every
  /// memory layout.
  std::int64_t alignment() const;
};

/// A linear product prepared for cuBLASLt. Running it allocates nothing.
///
///   constructor   known algorithm taken, or up to 16 proposals asked for
///   first run     proposals timed (Trials; the host waits) -> fastest kept, name stored
///   later runs    enqueued without waiting
///
/// A run that adds (+=) takes the first proposal without a trial, because a trial would change the
/// result.
class MatrixProduct {
 public:
  struct Options {
    bool deterministic = false;  ///< the library's first proposal, without a trial
    bool tfloat32 = false;       ///< the tensor cores may round float32 operands
    std::string label = {};      ///< name of the problem, for messages
  };
  /// Prepares the product. `trials` must outlive it. `data`: the pointers of its first use; later
  /// ones need the same alignment and, but for `added`, the same null pointers. Throws Failure if
  /// there is no epilogue and cuBLASLt has no algorithm.
  MatrixProduct(cublasLtHandle_t handle, Problem::Kind kind, Epilogue epilogue,
                const Linear& linear, const ProductData& data, Options options,
                AlgorithmEntry entry, Trials& trials);
  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  /// Enqueues the product on x, w and y, or their gradients; the kind decides which two are read
  /// and which is written. `workspace` must not be used until it has run. Returns false, with
  /// nothing done, if the library has no algorithm with the epilogue. Throws Failure if there is no
  /// epilogue and the library reports an error.
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
  bool no_epilogue_;                ///< there is no epilogue
  bool algorithm_settled_ = false;  ///< one proposal is left, and it has been run
  AlgorithmEntry entry_;
  std::string label_;
  Trials& trials_;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  /// The first is used. After the trial it is the only one.
  std::vector<cublasLtMatmulHeuristicResult_t> proposals_;
};

}  // namespace trireme::ops::cuda
