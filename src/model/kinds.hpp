// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace trireme::model {

enum class MlpKind : std::uint8_t { gelu, swiglu };
enum class NormKind : std::uint8_t { layer, rms };

}  // namespace trireme::model
