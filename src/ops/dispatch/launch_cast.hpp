// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/device/stream.hpp"
#include "trireme/tensor/tensor.hpp"

namespace trireme::ops {

/// Launches y = x between float32 and a 16-bit type, in either direction. Counts no bytes: cast()
/// does, and the conversions inside a product belong to it.
void launch_cast(const Stream& stream, const Tensor& x, const Tensor& y);

}  // namespace trireme::ops
