#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// The first `heads` heads of each row of x [rows, columns], turned in place by the angle position
/// * frequency, position = row % context.
struct RotaryShape {
  std::int64_t rows = 0, columns = 0, heads = 0, head_width = 0, context = 0;
  double base = 0;
  bool inverse = false;           ///< by minus the angle
  double* frequencies = nullptr;  ///< workspace [head_width / 2]: base^(-2 i / head_width)
};
template <class T>
void rotary(const Stream&, const RotaryShape&, T* x);

}  // namespace trireme::kernels
