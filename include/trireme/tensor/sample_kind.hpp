// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace trireme {

/// The samples of a dataset, and of the models that train on them.
enum class SampleKind : std::uint8_t { image, tokens };

}  // namespace trireme
