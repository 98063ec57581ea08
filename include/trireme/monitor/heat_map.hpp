// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::monitor {

/// A cell of a HeatMap that is not empty.
struct HeatCell {
  std::size_t row = 0, column = 0;
  std::int64_t count = 0;
};

/// A square matrix of counts whose rows and columns have the same names.
struct HeatMap {
  std::string title, subtitle, row_label, column_label;
  std::vector<std::string> names;
  std::vector<HeatCell> cells;
};

/// Returns the matrix as an SVG picture that is readable on light and on dark backgrounds.
///
/// A cell is the stronger the larger its part of the row. The diagonal has a color of its own.
/// Counts are written into the cells of up to 20 names. Each cell has a tooltip with its row,
/// column and count. The same matrix always gives the same bytes.
std::string to_svg(const HeatMap& map);

}  // namespace trireme::monitor
