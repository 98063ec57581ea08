#pragma once

#include "trireme/base/expect.hpp"
#include "trireme/kernels/types.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::ops {

inline bool is_compute_type(DType dtype) { return dtype == DType::float32 || dtype == DType::bfloat16; }

/// run(T()) with the element type that a compute dtype stands for: float or BFloat16.
template <class Run>
void with_element_type(DType dtype, const Run& run) {
  TRIREME_EXPECT(is_compute_type(dtype));
  dtype == DType::float32 ? run(float()) : run(BFloat16());
}

}  // namespace trireme::ops
