// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Returns whether the tensor has this shape and type, on the context's device.
inline bool fits(const Context& context, const Tensor& tensor, const Shape& shape, DType dtype) {
  return tensor.shape == shape && tensor.dtype == dtype &&
         tensor.device == context.stream().device.kind;
}

/// Returns the bytes of all tensors together. Undefined ones have none.
inline double bytes_of(std::initializer_list<const Tensor*> tensors) {
  double bytes = 0;
  for (const Tensor* tensor : tensors)
    bytes += tensor->defined() ? static_cast<double>(tensor->bytes()) : 0;
  return bytes;
}

}  // namespace trireme::ops
