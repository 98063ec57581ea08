// SPDX-License-Identifier: Apache-2.0
//
// Draws horizontal bars as an SVG picture: `plan --timeline` and `plan --memory-plot` use it.
//
// Order: find the range of x; draw the legend, then row after row; wrap them in the picture.
#include "trireme/monitor/bar_chart.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/monitor/svg.hpp"

namespace trireme::monitor {
namespace {

// Pixels.
constexpr double min_width = 760, chart_right = 28, bar_height = 20, thin_height = 7,
                 low_height = 5, bar_gap = 8, thin_gap = 3;
constexpr const char* colors[] = {"c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"};
constexpr std::size_t max_kinds = std::size(colors);
// Bars with more parts are drawn by columns of pixels.
constexpr std::size_t max_parts = 1500;

/// Replaces the parts of a bar by columns of pixels, which adjacent columns of one kind share.
std::vector<BarPart> columns_of(const std::vector<BarPart>& parts, const Axis& x,
                                std::size_t kinds) {
  const auto count = static_cast<std::size_t>(x.last_pixel - x.first_pixel);
  const double column = (x.high - x.low) / static_cast<double>(count);
  std::vector<double> filled(count * kinds, 0.0);
  for (const BarPart& part : parts) {
    const auto first = static_cast<std::size_t>(std::max(0.0, (part.begin - x.low) / column));
    for (std::size_t i = first; i < count; ++i) {
      const double begin = x.low + static_cast<double>(i) * column;
      if (begin >= part.end) break;
      const double length = std::min(part.end, begin + column) - std::max(part.begin, begin);
      // It covers about as much of each part behind it.
      for (std::size_t kind = 0; kind < kinds; ++kind)
        filled[i * kinds + kind] *= std::max(0.0, 1 - length / column);
      filled[i * kinds + static_cast<std::size_t>(part.kind)] += length;
    }
  }
  std::vector<BarPart> columns;
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = filled.begin() + static_cast<std::ptrdiff_t>(i * kinds);
    const auto most = std::max_element(begin, begin + static_cast<std::ptrdiff_t>(kinds));
    if (*most < 0.1 * column) continue;
    const int kind = static_cast<int>(most - begin);
    const double at = x.low + static_cast<double>(i) * column;
    if (!columns.empty() && columns.back().kind == kind && columns.back().end > at - 0.5 * column)
      columns.back().end = at + column;
    else
      columns.push_back({.begin = at, .end = at + column, .kind = kind});
  }
  return columns;
}

std::string bar(const BarRow& row, double y, const Axis& x, std::size_t kinds) {
  const double height = row.is_thin ? thin_height : bar_height;
  const bool is_dense = row.parts.size() > max_parts;
  std::string shapes, labels;
  for (const BarPart& part : is_dense ? columns_of(row.parts, x, kinds) : row.parts) {
    // A gap of half a pixel separates neighbors.
    const double begin = x.pixel(part.begin), end = x.pixel(part.end),
                 drawn = std::max(0.4, end - begin - (is_dense || end - begin < 2 ? 0 : 0.5)),
                 part_height = part.is_low ? low_height : height;
    shapes += rectangle_at(begin, y + height - part_height, drawn, part_height, colors[part.kind]);
    if (!row.is_thin && !part.label.empty() && drawn > text_width(part.label, 11) + 2)
      labels += text_at(begin + drawn / 2, y + 13, 11, "on_color", "middle", part.label);
  }
  return shapes + labels;
}

std::string mark_at(double x, double begin, double end) {
  return line_at(x, begin, x, end, "mark", " stroke-width=\"1.5\" stroke-dasharray=\"4 3\"");
}

}  // namespace

std::string to_svg(const BarChart& chart) {
  ensure(chart.kinds.size() <= max_kinds, "a bar chart of {} kinds; there are {} colors",
         chart.kinds.size(), max_kinds);
  // 1. The range of x, and room for the labels.
  double bars_left = 28, chart_width = min_width;
  Axis x;
  x.include(0);
  for (const BarRow& row : chart.rows) {
    if (chart.labels_above)
      chart_width = std::max(chart_width, text_width(row.label, 12));
    else
      bars_left = std::max(bars_left, 28 + text_width(row.label, row.is_thin ? 10 : 12));
    for (const BarPart& part : row.parts) x.include(part.end);
  }
  if (chart.mark) x.include(*chart.mark * 1.02);
  x.widen();
  x.first_pixel = bars_left;
  x.last_pixel = bars_left + chart_width;
  // 2. Title and legend.
  std::string body = text_at(20, 26, 15, "ink", "start", chart.title, " font-weight=\"600\"");
  body += text_at(20, 46, 13, "soft", "start", chart.subtitle);
  double legend_x = 20, y = 62;
  for (std::size_t kind = 0; kind < chart.kinds.size(); ++kind) {
    const double entry = 36 + text_width(chart.kinds[kind], 13);
    if (legend_x + entry > bars_left + chart_width) {
      legend_x = 20;
      y += 20;
    }
    body += rectangle_at(legend_x, y, 12, 12, colors[kind]);
    body += text_at(legend_x + 18, y + 11, 13, "ink", "start", chart.kinds[kind]);
    legend_x += entry;
  }
  y += chart.mark ? 46 : 28;
  const double first_row = y;
  // 3. Bars.
  std::string bars;
  for (const BarRow& row : chart.rows) {
    if (&row != &chart.rows.front()) y += row.is_thin ? thin_gap : bar_gap;
    const double height = row.is_thin ? thin_height : bar_height;
    if (chart.labels_above) {
      bars += text_at(bars_left, y + 11, 12, "ink", "start", row.label);
      y += 17;
    } else {
      bars += text_at(bars_left - 8, y + height / 2 + (row.is_thin ? 3.5 : 4),
                      row.is_thin ? 10 : 12, row.is_thin ? "soft" : "ink", "end", row.label);
    }
    bars += bar(row, y, x, std::max<std::size_t>(1, chart.kinds.size()));
    // A line through labels would hide them.
    if (chart.mark && chart.labels_above)
      bars += mark_at(x.pixel(*chart.mark), y - 1, y + height + 1);
    y += height;
  }
  // 4. The axis behind the bars, and the mark in front of them.
  const double last = y + bar_gap;
  for (const double tick : x.ticks()) {
    body += line_at(x.pixel(tick), first_row - 4, x.pixel(tick), last, "line");
    body += text_at(x.pixel(tick), last + 16, 12, "soft", "middle", number(tick));
  }
  body += bars;
  body += text_at(bars_left + chart_width / 2, last + 36, 13, "soft", "middle", chart.x_label);
  if (chart.mark) {
    const double at = x.pixel(*chart.mark);
    body += mark_at(at, first_row - 10, chart.labels_above ? first_row - 2 : last);
    const bool is_right = at > bars_left + chart_width / 2;
    body += text_at(at + (is_right ? 4 : -4), first_row - 15, 12, "mark-text",
                    is_right ? "end" : "start", chart.mark_label);
  }
  return picture(bars_left + chart_width + chart_right, last + 50, chart.title, body);
}

}  // namespace trireme::monitor
