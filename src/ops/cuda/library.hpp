// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "attention.hpp"
#include "operands.hpp"

namespace trireme::ops::cuda {

/// Bytes that every product and convolution takes from the workspace arena. One number for all, so
/// that a run's memory is known without a device to ask. Attention takes
/// attention_workspace_bytes().
constexpr std::int64_t workspace_bytes = std::int64_t{128} << 20;

/// The libraries receive the part of the workspace that begins at a multiple of 256 bytes; an
/// arena's memory need not. cuBLASLt's kernels for Hopper fail without that alignment
/// (NVIDIA/TransformerEngine, pull request 2223; ml-explore/mlx, 2466).
constexpr std::int64_t workspace_alignment = 256,
                       usable_workspace_bytes = workspace_bytes - workspace_alignment;

/// Operands of a product and of its epilogue; undefined: none. `vector` is a bias of the result's
/// type, or receives float32 column sums. `matrix` is GELU's input. `added` is added to the result.
/// Both have the result's shape and type.
struct ProductTensors {
  Tensor x, w, y, vector = {}, matrix = {}, added = {};
};

/// The CUDA libraries of a context: cuBLASLt and cuDNN on its stream, and a cache of every product
/// used so far. The first use of a product prepares it and may time algorithms (the host waits);
/// later uses only enqueue it. `workspace` has workspace_bytes bytes, except for attention.
class Library {
 public:
  virtual ~Library() = default;
  /// Enqueues a linear product with its epilogue: y = x w; dx = dy w^T; or dw = or += x^T dy
  /// (float32). The epilogue's own output is always assigned (=). Returns false, with nothing done,
  /// if cuBLASLt has no such epilogue for the problem. Without an epilogue it throws Failure
  /// instead.
  virtual bool multiply(Problem::Kind kind, Epilogue epilogue, const Linear&, const ProductTensors&,
                        Write, const Tensor& workspace) = 0;
  /// Enqueues a convolution, written (=) in its own dtype. Throws Failure.
  virtual void convolve(Problem::Kind kind, const Convolution&, const Tensor& x, const Tensor& w,
                        const Tensor& y, const Tensor& workspace) = 0;
  /// Enqueues a forward convolution whose epilogue adds the channels of y and their squares to
  /// `sums`, float32 [2, K], which must hold 0. Returns false if cuDNN has no engine for it, or if
  /// the engine cannot be run.
  virtual bool convolve_with_sums(const Convolution&, const Tensor& x, const Tensor& w,
                                  const Tensor& y, const Tensor& sums, const Tensor& workspace) = 0;
  /// Returns whether the fused convolution with sums, and the kernel that follows it, is faster
  /// than a convolution and statistics that read y. The known answer is taken; otherwise
  /// run_variant(fused) is timed for both, and the host waits. run_variant returns whether the
  /// variant could be run. `scratch`: workspace between two runs.
  virtual bool is_faster_with_sums(const Convolution&, const Tensor& scratch,
                                   const std::function<bool(bool fused)>& run_variant) = 0;
  /// The conditions of a trial of two variants.
  struct Trial {
    bool may_repeat;  ///< the variants may be run several times
    Tensor scratch;   ///< workspace between two runs
  };
  /// Returns whether a product with an epilogue is faster than the product and a kernel that
  /// follows it, like is_faster_with_sums(). True if that is unknown and no trial is made: in
  /// deterministic runs, for variants that may not be repeated, without time.
  virtual bool is_faster_with_epilogue(Problem::Kind kind, Epilogue epilogue, const Linear&,
                                       const Trial& trial,
                                       const std::function<bool(bool fused)>& run_variant) = 0;
  /// Returns whether a 1x1 convolution is faster as a matrix product of cuBLASLt, in the same way;
  /// run_variant(true) runs the product. `adds`: both variants add a tensor to their result. False
  /// if that is unknown.
  virtual bool is_faster_as_product(Problem::Kind kind, const Convolution&, bool adds,
                                    const Trial& trial,
                                    const std::function<bool(bool product)>& run_variant) = 0;
  /// Enqueues a pass of attention. Returns false if cuDNN has no engine for it, or without
  /// `workspace`, because that would be too large; the table of algorithms then names the problem.
  virtual bool attend(Problem::Kind kind, const Attention&, const AttentionTensors&,
                      const Tensor& workspace) = 0;
  virtual const TrialReport& trials() const = 0;
};

/// Returns the libraries on `stream`. Throws Failure in a build without CUDA, and if the libraries
/// find no device.
///
/// Each product runs the algorithm that `known` names, else the fastest of the library's proposals,
/// timed at the product's first use and stored in `known`. With `deterministic` it runs the
/// library's first proposal, which is the same in every run. `known` must outlive the result.
std::unique_ptr<Library> make_library(const Stream& stream, ContextOptions options,
                                      AlgorithmTable& known);

}  // namespace trireme::ops::cuda
