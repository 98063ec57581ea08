// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace trireme::monitor {

/// A point of a curve, in the units of the axes.
struct PlotPoint {
  double x = 0, y = 0;
};

/// One diagram: a curve over the x axis that all panels of a plot share.
struct PlotPanel {
  std::string label;              ///< of the y axis
  std::vector<PlotPoint> points;  ///< in increasing x; values that are not finite are left out
  /// A second, thicker curve, as a smoothed one. May be empty.
  std::vector<PlotPoint> emphasis = {};
  /// Larger values are drawn at the upper border, so that a few of them do not hide the others.
  double max_y = std::numeric_limits<double>::infinity();
};

/// Diagrams below each other.
struct Plot {
  std::string title, subtitle, x_label;
  std::vector<PlotPanel> panels;
  bool log_x = false;  ///< all x are positive
  /// A vertical line with a label, at this x.
  std::optional<double> mark = {};
  std::string mark_label = {};
};

/// Returns the plot as an SVG picture that is readable on light and on dark backgrounds. The same
/// plot always gives the same bytes.
std::string to_svg(const Plot& plot);

}  // namespace trireme::monitor
