// Draws curves as an SVG picture: `check --schedule` and the learning-rate range test use it.
//
// Order: find the range of x over all panels and that of y in each; draw grid, labels and curves of
// one panel after the other; wrap them in the picture with its colors.
#include "trireme/monitor/plot.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace trireme::monitor {
namespace {

// Pixels.
constexpr double left = 76, width = 660, right = 24, top = 64, panel_height = 190, panel_gap = 26,
                 bottom = 56;

// A browser takes the second palette if the reader prefers dark pages.
constexpr const char* style =
    "<style>text{font-family:system-ui,sans-serif}"
    ".ink{fill:#1f2328}.soft{fill:#59636e}.line{stroke:#d1d9e0}.curve{stroke:#0969da}"
    ".emphasis{stroke:#bc4c00}.mark{stroke:#1a7f37}.mark-text{fill:#1a7f37}"
    "@media(prefers-color-scheme:dark){.ink{fill:#e6edf3}.soft{fill:#9198a1}.line{stroke:#3d444d}"
    ".curve{stroke:#4493f8}.emphasis{stroke:#f0883e}.mark{stroke:#3fb950}"
    ".mark-text{fill:#3fb950}}</style>\n";

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
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

std::string text_at(double x, double y, int size, const char* color, const char* anchor,
                    const std::string& text, const char* more = "") {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" class=\"{}\" text-anchor=\"{}\"{}>{}"
      "</text>\n",
      x, y, size, color, anchor, more, escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* color,
                    const char* more = "") {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"{}/>\n", x1, y1,
      x2, y2, color, more);
}

/// An interval of the values on an axis, and its image in pixels.
struct Axis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool logarithmic = false;
  double first_pixel = 0, last_pixel = 1;

  void include(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  double scaled(double value) const { return logarithmic ? std::log10(value) : value; }
  double pixel(double value) const {
    const double part = (scaled(value) - scaled(low)) / (scaled(high) - scaled(low));
    return first_pixel + part * (last_pixel - first_pixel);
  }
  /// Begins the axis at 0 if the lowest value is positive and below this part of the highest one.
  void begin_at_zero(double part) {
    if (low > 0 && low < part * high) low = 0;
  }
  /// Makes the interval one that can be divided: not empty, with finite ends.
  void widen() {
    if (low > high) low = 0, high = 1;
    if (low < high) return;
    const double margin = low == 0 ? 1 : std::abs(low) * 0.1;
    if (!logarithmic) low -= margin;
    high += margin;
  }
  /// Returns round values from low to high: 1, 2 or 5 times a power of ten apart. On a logarithmic
  /// axis the powers of ten; if it is shorter than two of them, also 2 and 5 times these.
  std::vector<double> ticks() const {
    std::vector<double> values;
    if (logarithmic) {
      const bool is_short = high < 100 * low;
      for (double power = std::floor(std::log10(low)); power <= std::log10(high) + 1e-9; ++power)
        for (const double digit : {1, 2, 5}) {
          const double value = digit * std::pow(10.0, power);
          if ((digit == 1 || is_short) && value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9))
            values.push_back(value);
        }
      return values;
    }
    const double rough = (high - low) / 5;
    const double unit = std::pow(10.0, std::floor(std::log10(rough)));
    const double step = unit * (rough > 5 * unit   ? 10
                                : rough > 2 * unit ? 5
                                : rough > unit     ? 2
                                                   : 1);
    const double first = std::ceil(low / step - 1e-9);
    // The sum with 0 turns -0 into 0.
    for (double i = first; i * step <= high + step * 1e-9; ++i) values.push_back(i * step + 0.0);
    return values;
  }
};

/// Returns a round value without the digits of its binary form: 0.30000000000000004 is "0.3".
std::string number(double value) { return fmt::format("{:.6g}", value); }

std::string curve(const std::vector<PlotPoint>& points, const Axis& x, const Axis& y,
                  const char* color, double stroke) {
  std::string list;
  for (const PlotPoint& point : points)
    if (std::isfinite(point.x) && std::isfinite(point.y))
      list += fmt::format("{:.1f},{:.1f} ", x.pixel(point.x), y.pixel(point.y));
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
    for (const PlotPoint& point : panel.points) y.include(point.y);
    for (const PlotPoint& point : panel.emphasis) y.include(point.y);
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
    body += curve(panel.points, x, y, "curve", panel.emphasis.empty() ? 2 : 1);
    body += curve(panel.emphasis, x, y, "emphasis", 2.5);
    panel_top += panel_height + panel_gap;
  }
  const double last = panel_top - panel_gap;
  if (plot.mark)
    body += text_at(x.pixel(*plot.mark) + 6, top + 26, 12, "mark-text", "start", plot.mark_label);
  for (const double tick : x.ticks())
    body += text_at(x.pixel(tick), last + 20, 12, "soft", "middle", number(tick));
  body += text_at(left + width / 2, last + 42, 13, "soft", "middle", plot.x_label);
  const double total_width = left + width + right, total_height = last + bottom;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\" aria-label=\"{2}\">\n<title>{2}</title>\n{3}{4}"
      "</svg>\n",
      total_width, total_height, escaped(plot.title), style, body);
}

}  // namespace trireme::monitor
