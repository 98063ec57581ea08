// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Parameters of a dropout mask. Nothing is stored: backward draws the same mask again.
///
/// The tensor is rows [first_row, first_row + rows) of a micro-batch's B * context rows. Row r
/// belongs to sample b = r / context; its column c is element e = (r % context) * width + c of that
/// sample. Element e is kept where
///   uniform_unit(philox(mix64(key ^ sample_keys[b]), e / 4, 0).word[e % 4]) >= probability
/// and then scaled by 1 / (1 - probability).
///
/// Stochastic depth (Huang et al. 2016) drops the whole branch of a sample: after the mask, all
/// elements of sample b are multiplied by
///   0 if uniform_unit(philox(mix64(path_key ^ sample_keys[b]), 0, 0).word[0]) < path_probability,
///   1 / (1 - path_probability) otherwise.
struct Dropout {
  float probability = 0;  ///< in [0, 1)
  std::uint64_t key = 0;  ///< random key of the layer and the run
  /// [B], in memory that the kernels can read. Not read if both probabilities are 0.
  const std::uint64_t* sample_keys = nullptr;
  std::int64_t first_row = 0, context = 1;
  float path_probability = 0;  ///< in [0, 1)
  std::uint64_t path_key = 0;  ///< random key of the branch and the run
};

/// Enqueues y = x masked and scaled; forward and backward are the same function. y may be x. With
/// both probabilities 0 it copies x to y.
void dropout(Context&, const Dropout&, const Tensor& x, const Tensor& y);
/// Enqueues y = dropout(x + bias) + residual in one pass. bias is float32 [width], or undefined for
/// none. y may be the memory of residual, or of x if their dtypes are equal. residual and y have
/// one dtype. x has the same, or is float32: a partial sum that was reduced in float32.
void dropout_add(Context&, const Dropout&, const Tensor& x, const Tensor& bias,
                 const Tensor& residual, const Tensor& y);

}  // namespace trireme::ops
