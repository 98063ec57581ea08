// SPDX-License-Identifier: Apache-2.0
//
// Draws a square matrix of counts as an SVG picture: `evaluate --confusion` uses it.
//
// Order: choose the size of the cells; draw names and grid, then the cells; wrap them in the
// picture.
#include "trireme/monitor/heat_map.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <fmt/format.h>

#include "trireme/monitor/svg.hpp"

namespace trireme::monitor {
namespace {

constexpr std::size_t max_names_with_counts = 20, max_name_letters = 24;

/// Places of the matrix in the picture, in pixels.
struct HeatMapLayout {
  double cell, left, top, end_x, end_y;
  int font;
};

HeatMapLayout layout_of(const HeatMap& map) {
  const std::size_t count = map.names.size();
  std::size_t letters = 0;
  for (const std::string& name : map.names)
    letters = std::max(letters, std::min(name.size(), max_name_letters));
  const bool is_large = count <= max_names_with_counts;
  const double cell = is_large ? 34 : 13, names = static_cast<double>(letters) * (is_large ? 7 : 6);
  const double side = cell * static_cast<double>(count), left = 48 + names, top = 92 + names;
  return {cell, left, top, left + side, top + side, is_large ? 12 : 10};
}

std::string frame(const HeatMap& map, const HeatMapLayout& at) {
  std::string body = text_at(20, 26, 15, "ink", "start", map.title, " font-weight=\"600\"");
  body += text_at(20, 46, 13, "soft", "start", map.subtitle);
  const double middle_x = (at.left + at.end_x) / 2, middle_y = (at.top + at.end_y) / 2;
  body += text_at(middle_x, 72, 13, "soft", "middle", map.column_label);
  body += text_at(18, middle_y, 13, "soft", "middle", map.row_label,
                  fmt::format(" transform=\"rotate(-90 18 {:.1f})\"", middle_y).c_str());
  for (std::size_t i = 0; i <= map.names.size(); ++i) {
    const double offset = at.cell * static_cast<double>(i), x = at.left + offset,
                 y = at.top + offset;
    body += line_at(at.left, y, at.end_x, y, "line");
    body += line_at(x, at.top, x, at.end_y, "line");
    if (i == map.names.size()) break;
    const std::string name = shortened(map.names[i], max_name_letters);
    const double base = at.cell / 2 + at.font * 0.35;
    body += text_at(at.left - 6, y + base, at.font, "ink", "end", name);
    body += text_at(
        x + base, at.top - 6, at.font, "ink", "start", name,
        fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", x + base, at.top - 6).c_str());
  }
  return body;
}

std::string cell_at(const HeatMap& map, const HeatMapLayout& at, const HeatCell& cell,
                    double part) {
  const double x = at.left + at.cell * static_cast<double>(cell.column),
               y = at.top + at.cell * static_cast<double>(cell.row);
  // Rare confusions must be seen beside the diagonal.
  const double strength = 0.12 + 0.88 * std::sqrt(part);
  std::string shapes = fmt::format("<g><title>{}, {}: {}</title>\n", escaped(map.names[cell.row]),
                                   escaped(map.names[cell.column]), cell.count);
  shapes += rectangle_at(x + 0.5, y + 0.5, at.cell - 1, at.cell - 1,
                         cell.row == cell.column ? "c0" : "c1",
                         fmt::format(" fill-opacity=\"{:.2f}\"", strength).c_str());
  if (map.names.size() <= max_names_with_counts)
    shapes += text_at(x + at.cell / 2, y + at.cell / 2 + 4, 11, strength > 0.6 ? "on_color" : "ink",
                      "middle", fmt::format("{}", cell.count));
  return shapes + "</g>\n";
}

}  // namespace

std::string to_svg(const HeatMap& map) {
  const HeatMapLayout at = layout_of(map);
  std::vector<std::int64_t> sums(map.names.size());
  for (const HeatCell& cell : map.cells) sums[cell.row] += cell.count;
  std::string body = frame(map, at);
  for (const HeatCell& cell : map.cells)
    if (cell.count > 0)
      body += cell_at(map, at, cell,
                      static_cast<double>(cell.count) / static_cast<double>(sums[cell.row]));
  const double title_width = 40 + text_width(map.title, 16);
  return picture(std::max(title_width, at.end_x + 28), at.end_y + 24, map.title, body);
}

}  // namespace trireme::monitor
