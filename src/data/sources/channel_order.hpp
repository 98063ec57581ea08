// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::data {

/// The line of numpy that moves channels behind height and width.
inline constexpr const char* channels_last_line = "images = images.transpose(0, 2, 3, 1)";

/// Returns whether extents [samples, height, width, channels] look like those of images with
/// channels before height and width, as PyTorch stores them.
///
/// The height is then at most 16. Width and channels are more than 4 and than the height; they are
/// equal, or both are at least twice the height.
bool looks_channels_first(const std::vector<std::int64_t>& shape);

/// Returns why such extents cannot be right; empty if they can.
std::string channels_first_problem(const std::vector<std::int64_t>& shape);

}  // namespace trireme::data
