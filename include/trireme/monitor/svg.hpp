// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::monitor {

/// Escapes a text for SVG. What XML does not allow becomes an escape: control characters and bytes
/// that are not UTF-8 as \x0A, U+FFFE and U+FFFF as \uFFFE and \uFFFF.
std::string escaped(const std::string& text);

/// Returns the first letters of a text that is longer, and an ellipsis. Letters of UTF-8 count
/// once.
std::string shortened(const std::string& text, std::size_t max_letters);

/// Returns about how many pixels a text needs. Letters of UTF-8 count once.
double text_width(std::string_view text, int size);

/// Returns a text. `color`: ink, soft, on_color, mark-text; `anchor`: start, middle, end; `more`:
/// further attributes, with a space in front. Lengths of all functions are pixels.
std::string text_at(double x, double y, int size, const char* color, const char* anchor,
                    const std::string& text, const char* more = "");
/// Returns a line. `color`: line, mark.
std::string line_at(double x1, double y1, double x2, double y2, const char* color,
                    const char* more = "");
/// Returns a filled rectangle. `color`: c0 to c7.
std::string rectangle_at(double x, double y, double width, double height, const char* color,
                         const char* more = "");

/// An interval of the values on an axis, and its image in pixels.
struct Axis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool logarithmic = false;
  double first_pixel = 0, last_pixel = 1;

  /// Makes the interval contain a value that is finite.
  void include(double value);
  double scaled(double value) const;
  double pixel(double value) const;
  /// Begins the axis at 0 if the lowest value is positive and below this part of the highest one.
  void begin_at_zero(double part);
  /// Makes the interval one that can be divided: not empty, with finite ends.
  void widen();
  /// Returns round values from low to high: 1, 2 or 5 times a power of ten apart. On a logarithmic
  /// axis powers of ten, at most 9; if it is shorter than two of them, also 2 and 5 times these.
  std::vector<double> ticks() const;
};

/// Returns a round value without the digits of its binary form: 0.30000000000000004 is "0.3".
std::string number(double value);

/// Returns the picture with these shapes, and with one set of colors for light backgrounds and one
/// for dark ones. The same shapes always give the same bytes.
std::string picture(double width, double height, const std::string& title,
                    const std::string& shapes);

}  // namespace trireme::monitor
