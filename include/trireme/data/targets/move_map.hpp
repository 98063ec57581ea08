// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "trireme/data/sample_source.hpp"
#include "trireme/ops/image.hpp"

namespace trireme::data {

/// Crops and mirrors a target that is a map as the device does the image: `labels` is info.labels
/// [height, width] or [height, width, components]. What comes from outside is missing: -1 or NaN.
void move_map(const SampleInfo& info, const ops::ImageTransform& transform, void* labels,
              std::vector<std::byte>& scratch);

}  // namespace trireme::data
