#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::data {

/// The line of numpy that moves channels behind height and width.
inline constexpr const char* channels_last_line = "images = images.transpose(0, 2, 3, 1)";

/// Returns why extents [samples, height, width, channels] are those of images with channels before
/// height and width, as PyTorch stores them; empty if they are not. Such extents have a height of 1
/// or 3, and a width and more channels than 4.
std::string channels_first_problem(const std::vector<std::int64_t>& shape);

}  // namespace trireme::data
