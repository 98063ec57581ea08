// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// Images [B, height, width, channels] in square patches of `patch` pixels, each a row of patch x
/// patch x channels numbers. A sample has `leading` rows of zeros, then its patches from left to
/// right and from top to bottom.
struct PatchRows {
  std::int64_t height = 0, width = 0, channels = 0, patch = 0, leading = 0;
  std::int64_t grid_height() const { return height / patch; }
  std::int64_t grid_width() const { return width / patch; }
  /// Returns the rows of a sample, and the numbers of a row.
  std::int64_t rows_of_sample() const { return leading + grid_height() * grid_width(); }
  TRIREME_FUNCTION std::int64_t row_elements() const { return patch * patch * channels; }
};

/// y [rows, row_elements] = the rows of x from `first_row` on.
template <class T>
void gather_patches(const Stream&, const PatchRows&, std::int64_t first_row, std::int64_t rows,
                    const T* x, T* y);

/// y [B, height, width, channels] = the patches of x [rows, row_elements], which are all rows of
/// the samples; the leading ones are not read.
template <class T>
void scatter_patches(const Stream&, const PatchRows&, std::int64_t rows, const T* x, T* y);

}  // namespace trireme::kernels
