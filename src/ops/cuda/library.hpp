#pragma once

#include <cstdint>
#include <memory>

#include "../problem.hpp"
#include "attention.hpp"

namespace trireme::ops::cuda {

/// What a product may take of the workspace arena. One number for all, so that the memory of a run is known where there is no device to ask.
constexpr std::int64_t workspace_bytes = std::int64_t{128} << 20;

/// The CUDA libraries' side of a context: cuBLASLt and cuDNN on its stream, and every product met so far. `workspace` has workspace_bytes.
class Library {
 public:
  virtual ~Library() = default;
  /// A kind of linear product: y = x w; dx = dy w^T; dw = or += x^T dy (float32). Throws Failure.
  /// `bias` (y's type; undefined: none) is added to y; false: cuBLASLt does not add it, and it remains to be done.
  virtual bool multiply(Problem::Kind kind, const Linear&, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y, Write,
                        const Tensor& workspace) = 0;
  /// A kind of convolution, written in its own dtype. Throws Failure.
  virtual void convolve(Problem::Kind kind, const Convolution&, const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& workspace) = 0;
  /// A pass of attention; false where cuDNN has no engine for it.
  virtual bool attend(Problem::Kind kind, const Attention&, const AttentionTensors&, const Tensor& workspace) = 0;
};

/// Throws Failure in a build without CUDA, and where the libraries find no device. Of the algorithms that the libraries propose for a product the
/// fastest is taken, found by trying them at its first use; `deterministic`: the first, which is the same at every run.
std::unique_ptr<Library> make_library(const Stream& stream, bool deterministic);

}  // namespace trireme::ops::cuda
