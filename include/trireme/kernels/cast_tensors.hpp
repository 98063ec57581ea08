// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// One tensor of cast_tensors(): y = x, rounded to nearest, or y += x, added in float32. x or y is
/// float32, or both are. Each row of x has `x_channels` elements, of which the first `y_channels`
/// are read.
struct TensorCast {
  const void* x = nullptr;
  void* y = nullptr;
  std::int64_t elements = 0;  ///< of y
  std::int32_t x_channels = 1, y_channels = 1;
  ElementType x_type = ElementType::float32, y_type = ElementType::float32;
  bool add = false;
};

/// Tensors of one launch: their list is an argument of the kernel, which may have 4 KiB.
constexpr std::size_t max_tensor_casts = 64;

/// Casts at most `max_tensor_casts` tensors in one launch. No result may overlap another tensor of
/// the list.
void cast_tensors(const Stream&, std::span<const TensorCast>);

}  // namespace trireme::kernels
