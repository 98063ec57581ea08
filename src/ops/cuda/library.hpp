#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "attention.hpp"
#include "operands.hpp"

namespace trireme::ops::cuda {

/// What a product may take of the workspace arena. One number for all, so that the memory of a run
/// is known where there is no device to ask.
constexpr std::int64_t workspace_bytes = std::int64_t{128} << 20;

/// The libraries get what of it lies from a multiple of 256 bytes on, which an arena's memory need
/// not begin at: cuBLASLt's kernels for Hopper fail without (NVIDIA/TransformerEngine, pull request
/// 2223; ml-explore/mlx, 2466).
constexpr std::int64_t workspace_alignment = 256,
                       usable_workspace_bytes = workspace_bytes - workspace_alignment;

/// Operands of a product and of its epilogue, undefined where there is none. `vector`: a bias of
/// the result's type, or float32 sums; `matrix` and `added`, which is added to the result that is
/// written: of the result's shape and type.
struct ProductTensors {
  Tensor x, w, y, vector = {}, matrix = {}, added = {};
};

/// The CUDA libraries' side of a context: cuBLASLt and cuDNN on its stream, and every product met
/// so far. `workspace` has workspace_bytes.
class Library {
 public:
  virtual ~Library() = default;
  /// A kind of linear product: y = x w; dx = dy w^T; dw = or += x^T dy (float32), with its
  /// epilogue, which writes (=) in any case. False, and nothing is done, where cuBLASLt has no such
  /// epilogue for the problem; without one it throws Failure then.
  virtual bool multiply(Problem::Kind kind, Epilogue epilogue, const Linear&, const ProductTensors&,
                        Write, const Tensor& workspace) = 0;
  /// A kind of convolution, written in its own dtype. Throws Failure.
  virtual void convolve(Problem::Kind kind, const Convolution&, const Tensor& x, const Tensor& w,
                        const Tensor& y, const Tensor& workspace) = 0;
  /// The convolution forward, and in its epilogue sums, float32 [2, K] that hold 0, = those of y's
  /// channels and of their squares. False where cuDNN has no engine for it, or it cannot be run.
  virtual bool convolve_with_sums(const Convolution&, const Tensor& x, const Tensor& w,
                                  const Tensor& y, const Tensor& sums, const Tensor& workspace) = 0;
  /// Whether such a convolution and what follows it is to be taken in place of a convolution and
  /// statistics that read y: where cuDNN has it, and it is known to be faster or found so by doing
  /// both, which the host waits for. do_it(together) returns whether it could be done.
  virtual bool is_faster_with_sums(const Convolution&,
                                   const std::function<bool(bool fused)>& run_variant) = 0;
  /// A pass of attention; false where cuDNN has no engine for it.
  virtual bool attend(Problem::Kind kind, const Attention&, const AttentionTensors&,
                      const Tensor& workspace) = 0;
};

/// Throws Failure in a build without CUDA, and where the libraries find no device. Of the
/// algorithms that the libraries propose for a product the known one is taken, else the fastest,
/// found by trying them at its first use, and known from then on; `deterministic`: the first, which
/// is the same at every run. `known` outlives the library.
std::unique_ptr<Library> make_library(const Stream& stream, ContextOptions options,
                                      AlgorithmTable& known);

}  // namespace trireme::ops::cuda
