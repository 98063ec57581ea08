// SPDX-License-Identifier: Apache-2.0
//
// Parts of SVG pictures that plots and bar charts share: texts, lines, axes and the two palettes.
#include "trireme/monitor/svg.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::monitor {
namespace {

// A browser takes the second palette if the reader prefers dark pages.
constexpr const char* style =
    "<style>text{font-family:system-ui,sans-serif}"
    ".ink{fill:#1f2328}.soft{fill:#59636e}.line{stroke:#d1d9e0}.curve{stroke:#0969da}"
    ".emphasis{stroke:#bc4c00}.mark{stroke:#1a7f37}.mark-text{fill:#1a7f37}"
    "@media(prefers-color-scheme:dark){.ink{fill:#e6edf3}.soft{fill:#9198a1}.line{stroke:#3d444d}"
    ".curve{stroke:#4493f8}.emphasis{stroke:#f0883e}.mark{stroke:#3fb950}"
    ".mark-text{fill:#3fb950}}</style>\n";
// Colors of rectangles, if there are any.
constexpr const char* rectangle_style =
    "<style>.on_color{fill:#ffffff}.c0{fill:#0969da}.c1{fill:#bc4c00}.c2{fill:#1a7f37}"
    ".c3{fill:#8250df}.c4{fill:#9a6700}.c5{fill:#bf3989}.c6{fill:#0a7d8c}.c7{fill:#b7bfc8}"
    "@media(prefers-color-scheme:dark){.on_color{fill:#0d1117}.c0{fill:#4493f8}.c1{fill:#f0883e}"
    ".c2{fill:#3fb950}.c3{fill:#ab7df8}.c4{fill:#d29922}.c5{fill:#db61a2}.c6{fill:#39c5cf}"
    ".c7{fill:#545d68}}</style>\n";

}  // namespace

std::string escaped(const std::string& text) {
  std::string result;
  std::string shown = printable(text, text.size());
  // Characters of UTF-8 that XML does not allow.
  for (const auto& [character, name] :
       {std::pair("\xEF\xBF\xBE", "\\uFFFE"), {"\xEF\xBF\xBF", "\\uFFFF"}})
    for (std::size_t at = 0; (at = shown.find(character, at)) != std::string::npos;)
      shown.replace(at, 3, name);
  for (const char c : shown) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '"')
      result += "&quot;";
    else
      result += c;
  }
  return result;
}

double text_width(std::string_view text, int size) {
  constexpr double letter_width = 0.6;  // at size 1
  const auto letters =
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
  return static_cast<double>(letters) * letter_width * size;
}

std::string shortened(const std::string& text, std::size_t max_letters) {
  std::size_t letters = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    if ((text[i] & 0xc0) != 0x80 && ++letters > max_letters)
      return text.substr(0, i) + "\xE2\x80\xA6";
  return text;
}

std::string text_at(double x, double y, int size, const char* color, const char* anchor,
                    const std::string& text, const char* more) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" class=\"{}\" text-anchor=\"{}\"{}>{}"
      "</text>\n",
      x, y, size, color, anchor, more, escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* color,
                    const char* more) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"{}/>\n", x1, y1,
      x2, y2, color, more);
}

std::string rectangle_at(double x, double y, double width, double height, const char* color,
                         const char* more) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"{}\"{}/>\n", x, y,
      width, height, color, more);
}

void Axis::include(double value) {
  if (!std::isfinite(value)) return;
  low = std::min(low, value);
  high = std::max(high, value);
}

double Axis::scaled(double value) const { return logarithmic ? std::log10(value) : value; }

double Axis::pixel(double value) const {
  const double part = (scaled(value) - scaled(low)) / (scaled(high) - scaled(low));
  return first_pixel + part * (last_pixel - first_pixel);
}

void Axis::begin_at_zero(double part) {
  if (low > 0 && low < part * high) low = 0;
}

void Axis::widen() {
  if (low > high) low = 0, high = 1;
  // Values that differ by rounding are one value: ticks between them would not differ.
  constexpr double rounding = 1e-9;
  const double largest = std::max(std::abs(low), std::abs(high));
  if (high - low > rounding * largest) return;
  const double margin = largest == 0 ? 1 : 0.1 * largest;
  if (!logarithmic) low -= margin;
  high += margin;
}

std::vector<double> Axis::ticks() const {
  std::vector<double> values;
  if (logarithmic) {
    const bool is_short = high < 100 * low;
    constexpr double max_powers = 8;
    const double powers = std::log10(high) - std::log10(low),
                 stride = std::max(1.0, std::ceil(powers / max_powers));
    for (double power = std::floor(std::log10(low)); power <= std::log10(high) + 1e-9;
         power += stride)
      for (const double digit : {1, 2, 5}) {
        const double value = digit * std::pow(10.0, power);
        if ((digit == 1 || is_short) && value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9))
          values.push_back(value);
      }
    return values;
  }
  const double rough = (high - low) / 5;
  const double unit = std::pow(10.0, std::floor(std::log10(rough)));
  const double step = unit * (rough > 5 * unit ? 10 : rough > 2 * unit ? 5 : rough > unit ? 2 : 1);
  const double first = std::ceil(low / step - 1e-9);
  // The sum with 0 turns -0 into 0.
  for (double i = first; i * step <= high + step * 1e-9; ++i) values.push_back(i * step + 0.0);
  return values;
}

std::string number(double value) { return fmt::format("{:.6g}", value); }

std::string picture(double width, double height, const std::string& title,
                    const std::string& shapes) {
  const bool has_rectangles = shapes.find("<rect ") != std::string::npos;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\" aria-label=\"{2}\">\n<title>{2}</title>\n{3}{4}"
      "{5}</svg>\n",
      width, height, escaped(title), style, has_rectangles ? rectangle_style : "", shapes);
}

}  // namespace trireme::monitor
