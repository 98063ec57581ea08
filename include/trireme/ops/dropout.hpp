#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Where the mask of a dropout comes from. The tensor is rows [first_row, first_row + rows) of a
/// micro-batch's B * context rows; row r belongs to sample b = r / context, and element e = (r %
/// context) * width + column of the sample is kept where uniform_unit(philox(mix64(key ^
/// sample_keys[b]), e / 4, 0).word[e % 4]) >= probability, then scaled by 1 / (1 - probability).
/// Nothing is stored: backward draws the mask again.
struct Dropout {
  float probability = 0;  ///< in [0, 1)
  std::uint64_t key = 0;  ///< of the layer and the run
  const std::uint64_t* sample_keys =
      nullptr;  ///< [B], where the kernels run; not read at probability 0
  std::int64_t first_row = 0, context = 1;
};

/// y = x masked and scaled, forward and backward alike. y may be x; probability 0: a copy (nothing
/// where y is x).
void dropout(Context&, const Dropout&, const Tensor& x, const Tensor& y);
/// y = dropout(x + bias) + residual in one pass; bias float32 [width] (undefined: none). y may be
/// the memory of residual, or of x where their dtypes are one. x, residual and y are of one dtype,
/// but x may also be float32 where y is narrower: a partial sum that was reduced in float32.
void dropout_add(Context&, const Dropout&, const Tensor& x, const Tensor& bias,
                 const Tensor& residual, const Tensor& y);

}  // namespace trireme::ops
