#pragma once

#include "trireme/base/expect.hpp"
#include "trireme/kernels/types.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::ops {

/// What activations, their gradients and working weights may be.
inline bool is_compute_type(DType dtype) {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16;
}

/// As kernels name a compute type.
inline ElementType element_type(DType dtype) {
  TRIREME_EXPECT(is_compute_type(dtype));
  return dtype == DType::bfloat16  ? ElementType::bfloat16
         : dtype == DType::float16 ? ElementType::float16
                                   : ElementType::float32;
}

/// run(T()) with the element type that a compute type stands for: float, BFloat16 or Float16.
template <class Run>
void with_element_type(DType dtype, const Run& run) {
  with_type(element_type(dtype), run);
}

}  // namespace trireme::ops
