// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace trireme::parallel {

/// The positions of an image: some in front, then those of a grid, row by row.
struct PositionGrid {
  std::int64_t leading = 0, height = 0, width = 0;

  std::int64_t positions() const { return leading + height * width; }
  bool operator==(const PositionGrid&) const = default;
};

/// Returns the square grid of so many positions; none if their number is not that of a square of at
/// most 1024 x 1024.
std::optional<PositionGrid> square_grid(std::int64_t positions, std::int64_t leading);

/// Interpolates the vectors [positions, extent] of a grid at the positions of another one: with
/// cubic convolution (Keys 1981, doi:10.1109/TASSP.1981.1163711) of a = -1/2, which widens where
/// the grid shrinks (antialiasing). Both grids cover the same image. Vectors in front of the grid,
/// of which both have the same number, are kept.
///
/// Differs by rounding from PyTorch's interpolate(mode="bicubic", antialias=True), with which timm
/// resizes position embeddings.
std::vector<float> interpolate(std::span<const float> vectors, const PositionGrid& from,
                               const PositionGrid& to, std::int64_t extent);

}  // namespace trireme::parallel
