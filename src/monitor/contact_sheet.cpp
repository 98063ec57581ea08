// SPDX-License-Identifier: Apache-2.0
#include "trireme/monitor/contact_sheet.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "trireme/base/text.hpp"
#include "trireme/monitor/svg.hpp"

namespace trireme::monitor {
namespace {

constexpr std::size_t max_columns = 8, max_line_letters = 19;
constexpr double tile_side = 128, tile_gap = 16, sheet_left = 20, sheet_top = 64, line_height = 15;

std::string tile_at(const SheetTile& tile, double x, double y) {
  std::string title;
  for (const std::string& line : tile.lines) title += (title.empty() ? "" : "; ") + line;
  std::string shapes = fmt::format(
      "<g><title>{}</title>\n<image x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" "
      "style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>\n",
      escaped(title), x, y, tile_side, tile_side, base64(tile.png));
  for (std::size_t i = 0; i < tile.lines.size(); ++i)
    shapes += text_at(x, y + tile_side + line_height * static_cast<double>(i + 1), 12, "ink",
                      "start", shortened(tile.lines[i], max_line_letters));
  return shapes + "</g>\n";
}

}  // namespace

std::string to_svg(const ContactSheet& sheet) {
  std::size_t lines = 0;
  for (const SheetTile& tile : sheet.tiles) lines = std::max(lines, tile.lines.size());
  const double row_height = tile_side + line_height * static_cast<double>(lines) + tile_gap;
  std::string body =
      text_at(sheet_left, 26, 15, "ink", "start", sheet.title, " font-weight=\"600\"");
  body += text_at(sheet_left, 46, 13, "soft", "start", sheet.subtitle);
  for (std::size_t i = 0; i < sheet.tiles.size(); ++i)
    body += tile_at(sheet.tiles[i],
                    sheet_left + (tile_side + tile_gap) * static_cast<double>(i % max_columns),
                    sheet_top + row_height * static_cast<double>(i / max_columns));
  const auto rows = static_cast<double>((sheet.tiles.size() + max_columns - 1) / max_columns);
  const double width = 2 * sheet_left + std::max((tile_side + tile_gap) * max_columns - tile_gap,
                                                 text_width(sheet.title, 16));
  return picture(width, sheet_top + row_height * rows, sheet.title, body);
}

}  // namespace trireme::monitor
