// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Rotary position embedding (Su et al. 2021) in Llama's half rotation, of the first `heads` heads
/// of each row of x [rows, columns]. The pair (i, i + head_width/2) of a head is rotated by the
/// angle position * base^(-2 i / head_width) with position = (first + row) % context.
struct Rotary {
  std::int64_t rows = 0, columns = 0, heads = 0, head_width = 0, context = 0;
  /// float32, bfloat16 or float16. The rotation is computed in float32; sines are correct to
  /// float32's rounding at any position.
  DType dtype = DType::float32;
  double base = 10000;
  std::int64_t first = 0;  ///< position of row 0
};

/// Enqueues the rotation of x in place. `inverse` rotates by minus the angle: the backward pass.
void rotary(Context&, const Rotary&, const Tensor& x, bool inverse);

}  // namespace trireme::ops
