// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// One cast of cast_tensors(): y = x in y's dtype, rounded to nearest even, or y += x. Either x or
/// y is float32, or both are; only float32 is added to. The last extent of x may be larger: further
/// channels are dropped.
struct TensorCast {
  Tensor x, y;
  Write write = Write::assign;
};

/// Enqueues the casts of all tensors, as many as fit in one launch. With `fusions` = false each has
/// launches of its own. The results have the same bits. No result may overlap another tensor of the
/// list.
void cast_tensors(Context&, std::span<const TensorCast>);

/// Holds gradients of weights that a library has written in 16 bits, until convert() casts all of
/// them to float32 in one launch. Only cuDNN needs it, for convolutions.
///
/// Backward of three blocks, of which blocks 2 and 1 are one bucket:
///
///   op       block 2: allocate A | block 1: allocate B C | convert | block 0: allocate D | convert
///   memory   A                   | A B C                 | -       | D                   | -
///
/// Memory is used again after convert(). The order on the context's stream protects it.
class NarrowGradients {
 public:
  /// Takes memory from the top of `memory`, from which nothing else may be allocated before
  /// convert().
  explicit NarrowGradients(Arena& memory) : memory_(memory) {}
  /// Returns memory for a gradient, valid until convert().
  Tensor allocate(DType type, const Shape& shape);
  /// Leaves a cast, whose `x` allocate() returned, to convert().
  void cast_later(const TensorCast& cast) { casts_.push_back(cast); }
  /// Enqueues all casts and frees the memory. They belong to ops that were counted before.
  void convert(Context& context);

 private:
  Arena& memory_;
  std::int64_t mark_ = -1;  ///< top of `memory` without gradients; -1: there are none
  std::vector<TensorCast> casts_;
};

}  // namespace trireme::ops
