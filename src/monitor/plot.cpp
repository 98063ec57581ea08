// SPDX-License-Identifier: Apache-2.0
//
// Draws curves as an SVG picture: `check --schedule` and the learning-rate range test use it.
//
// Order: find the range of x over all panels and that of y in each; draw grid, labels and curves of
// one panel after the other; wrap them in the picture with its colors.
#include "trireme/monitor/plot.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "trireme/monitor/svg.hpp"

namespace trireme::monitor {
namespace {

// Pixels.
constexpr double left = 76, width = 660, right = 24, top = 64, panel_height = 190, panel_gap = 26,
                 bottom = 56;

std::string curve(const std::vector<PlotPoint>& points, double max_y, const Axis& x, const Axis& y,
                  const char* color, double stroke) {
  std::string list;
  for (const PlotPoint& point : points)
    if (std::isfinite(point.x) && std::isfinite(point.y))
      list += fmt::format("{:.1f},{:.1f} ", x.pixel(point.x), y.pixel(std::min(point.y, max_y)));
  if (list.empty()) return "";
  list.pop_back();
  return fmt::format(
      "<polyline points=\"{}\" fill=\"none\" class=\"{}\" stroke-width=\"{}\" "
      "stroke-linejoin=\"round\"/>\n",
      list, color, stroke);
}

}  // namespace

std::string to_svg(const Plot& plot) {
  Axis x{.logarithmic = plot.log_x, .first_pixel = left, .last_pixel = left + width};
  for (const PlotPanel& panel : plot.panels)
    for (const PlotPoint& point : panel.points) x.include(point.x);
  if (!plot.log_x) x.begin_at_zero(0.1);
  x.widen();
  std::string body = text_at(20, 26, 15, "ink", "start", plot.title, " font-weight=\"600\"");
  body += text_at(20, 46, 13, "soft", "start", plot.subtitle);
  double panel_top = top;
  for (const PlotPanel& panel : plot.panels) {
    Axis y{.first_pixel = panel_top + panel_height, .last_pixel = panel_top + 14};
    for (const std::vector<PlotPoint>* points : {&panel.points, &panel.emphasis})
      for (const PlotPoint& point : *points)
        if (std::isfinite(point.y)) y.include(std::min(point.y, panel.max_y));
    y.begin_at_zero(0.5);
    y.widen();
    for (const double tick : y.ticks()) {
      body += line_at(left, y.pixel(tick), left + width, y.pixel(tick), "line");
      body += text_at(left - 8, y.pixel(tick) + 4, 12, "soft", "end", number(tick));
    }
    for (const double tick : x.ticks())
      body += line_at(x.pixel(tick), y.first_pixel, x.pixel(tick), y.first_pixel + 4, "line");
    const double middle = panel_top + panel_height / 2;
    body += text_at(18, middle, 13, "soft", "middle", panel.label,
                    fmt::format(" transform=\"rotate(-90 18 {:.1f})\"", middle).c_str());
    if (plot.mark)
      body += line_at(x.pixel(*plot.mark), panel_top + 14, x.pixel(*plot.mark), y.first_pixel,
                      "mark", " stroke-dasharray=\"4 4\"");
    body += curve(panel.points, panel.max_y, x, y, "curve", panel.emphasis.empty() ? 2 : 1);
    body += curve(panel.emphasis, panel.max_y, x, y, "emphasis", 2.5);
    panel_top += panel_height + panel_gap;
  }
  const double last = panel_top - panel_gap;
  if (plot.mark)
    body += text_at(x.pixel(*plot.mark) + 6, top + 26, 12, "mark-text", "start", plot.mark_label);
  for (const double tick : x.ticks())
    body += text_at(x.pixel(tick), last + 20, 12, "soft", "middle", number(tick));
  body += text_at(left + width / 2, last + 42, 13, "soft", "middle", plot.x_label);
  const double total_width = left + width + right, total_height = last + bottom;
  return picture(total_width, total_height, plot.title, body);
}

}  // namespace trireme::monitor
