#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Rotary position embedding (Su et al. 2021) in Llama's half rotation: the first `heads` heads of
/// each row of x [rows, columns] are turned, the pair (i, i + head_width/2) of a head by the angle
/// position * base^(-2 i / head_width), position = row % context.
struct Rotary {
  std::int64_t rows = 0, columns = 0, heads = 0, head_width = 0, context = 0;
  DType dtype = DType::float32;  ///< float32, bfloat16 or float16, turned in float32; the angles'
                                 ///< sines are right to float32's rounding at any position
  double base = 10000;
};

/// In place. `inverse`: by minus the angle, which is the backward pass.
void rotary(Context&, const Rotary&, const Tensor& x, bool inverse);

}  // namespace trireme::ops
