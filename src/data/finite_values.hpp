// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/tensor/tensor.hpp"

namespace trireme::data {

/// Returns the index of the first value that is infinite or NaN; -1: there is none. Integers always
/// are finite. `type`: uint8, uint16, float16 or float32.
std::int64_t find_not_finite(DType type, const std::byte* values, std::int64_t count);

}  // namespace trireme::data
