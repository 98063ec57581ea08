// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trireme::monitor {

/// A part of a bar, in the units of the x axis.
struct BarPart {
  double begin = 0, end = 0;
  int kind = 0;            ///< of BarChart::kinds
  std::string label = {};  ///< written on the part where there is room
  bool is_low = false;     ///< drawn as a strip in the bottom of the bar
};

/// A bar with its label. Of overlapping parts the later ones are in front.
struct BarRow {
  std::string label;
  std::vector<BarPart> parts;
  /// Belongs to the row above it.
  bool is_thin = false;
};

/// Horizontal bars below each other, which share their x axis: lanes of time, or stacks of bytes.
struct BarChart {
  std::string title, subtitle, x_label;
  std::vector<std::string> kinds;  ///< Names of the colors, at most 8; the last color is gray.
  std::vector<BarRow> rows;
  bool labels_above = false;  ///< Labels are above their bars, for long ones. Else to the left.
  /// A vertical line with a label, at this x.
  std::optional<double> mark = {};
  std::string mark_label = {};
};

/// Returns the chart as an SVG picture that is readable on light and on dark backgrounds. The axis
/// begins at 0. In a bar of many parts a column of pixels has the color of the kind that takes most
/// of it. The same chart always gives the same bytes. Throws Failure if there are more than 8
/// kinds.
std::string to_svg(const BarChart& chart);

}  // namespace trireme::monitor
