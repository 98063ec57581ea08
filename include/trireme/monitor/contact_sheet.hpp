// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace trireme::monitor {

/// An image and the lines of text below it.
struct SheetTile {
  std::string png;  ///< contents of a PNG file
  std::vector<std::string> lines;
};

/// Images in rows of eight, in their order.
struct ContactSheet {
  std::string title, subtitle;
  std::vector<SheetTile> tiles;
};

/// Returns the sheet as an SVG picture that holds its images. Small images are enlarged without
/// smoothing. Lines that are too long are cut; the tooltip of a tile has them whole.
std::string to_svg(const ContactSheet& sheet);

}  // namespace trireme::monitor
