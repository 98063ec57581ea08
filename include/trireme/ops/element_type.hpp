// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/base/expect.hpp"
#include "trireme/kernels/types.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::ops {

/// Returns whether activations, their gradients and working weights may have this type.
inline bool is_compute_type(DType dtype) {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16;
}

/// Returns the kernels' name of a compute type.
inline ElementType element_type(DType dtype) {
  TRIREME_EXPECT(is_compute_type(dtype));
  return dtype == DType::bfloat16  ? ElementType::bfloat16
         : dtype == DType::float16 ? ElementType::float16
                                   : ElementType::float32;
}

/// Calls run(T()) with the C++ type of a compute type: float, BFloat16 or Float16.
template <class Run>
void with_element_type(DType dtype, const Run& run) {
  with_type(element_type(dtype), run);
}

}  // namespace trireme::ops
