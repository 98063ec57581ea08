// SPDX-License-Identifier: Apache-2.0
//
// Draws what a model answers against what the data has: a point for each number, on axes of the
// same range, with the line on which both are equal.
#include <algorithm>

#include <fmt/format.h>

#include "html.hpp"
#include "page_parts.hpp"
#include "trireme/monitor/svg.hpp"

namespace trireme::report {
namespace {

using monitor::escaped;
using Pairs = std::vector<ComparedValues::Pair>;

// Pixels of a chart.
constexpr struct {
  double left, right, top, bottom, width, height;
} cloud{58, 258, 12, 212, 276, 250};

std::string points(const Pairs& pairs, std::size_t max_points, const monitor::Axis& x,
                   const monitor::Axis& y) {
  std::string path;
  const std::size_t step = (pairs.size() + max_points - 1) / max_points;
  for (std::size_t i = 0; i < pairs.size(); i += step)
    path += fmt::format("M{:.1f} {:.1f}h0", x.pixel(pairs[i].target), y.pixel(pairs[i].value));
  return path;
}

std::string chart(const std::string& title, const Pairs& pairs, std::size_t max_points) {
  monitor::Axis y{.first_pixel = cloud.bottom, .last_pixel = cloud.top};
  for (const auto& [target, value] : pairs) {
    y.include(target);
    y.include(value);
  }
  y.widen();
  monitor::Axis x = y;
  x.first_pixel = cloud.left;
  x.last_pixel = cloud.right;
  return fmt::format(
      "<figure>\n<figcaption><b>{0}</b></figcaption>\n<svg class=\"chart\" viewBox=\"0 0 {1:.0f} "
      "{2:.0f}\" role=\"img\" aria-label=\"{0}, true against predicted\">\n{3}<path "
      "class=\"cloud r0\" d=\"{4}\"/>\n<line class=\"event\" x1=\"{5}\" y1=\"{6}\" x2=\"{7}\" "
      "y2=\"{8}\"/>\n</svg>\n</figure>\n",
      title, cloud.width, cloud.height, grid(x, y, "true"), points(pairs, max_points, x, y),
      cloud.left, cloud.bottom, cloud.right, cloud.top);
}

std::string charts(const RunRecord& run, const ComparedValues& found, std::size_t max_points) {
  const std::size_t most = std::ranges::max(found.pairs, {}, &Pairs::size).size();
  if (most == 0) return paragraph(found.file + ": no finite numbers to compare");
  const std::vector<std::string> names =
      run.deck ? run.deck->data.hdf5.target : std::vector<std::string>();
  const char* const word = run.deck ? deck::answer_of(*run.deck).part : "number";
  std::string text =
      fmt::format("<p class=\"name\">{}{}</p>\n<div class=\"clouds\">\n", escaped(found.file),
                  found.split.empty() ? "" : fmt::format(" ({})", escaped(found.split)));
  for (std::size_t part = 0; part < found.pairs.size(); ++part) {
    if (found.pairs[part].empty()) continue;
    constexpr std::size_t max_letters = 40;
    std::string title = fmt::format("{} {}", word, part);
    if (std::ssize(names) == found.parts)
      title += fmt::format(" ({})", monitor::shortened(names[part], max_letters));
    text += chart(escaped(title), found.pairs[part], max_points);
  }
  text += "</div>\n";
  std::string remark = "Across: the data; up: the model; on the line both are equal.";
  if (const std::size_t drawn = std::min(most, max_points);
      static_cast<std::int64_t>(drawn) < found.numbers)
    remark += fmt::format(" At most {} of {} numbers.", drawn, found.numbers);
  if (std::ssize(found.pairs) < found.parts)
    remark += fmt::format(" The first {} of {}.", found.pairs.size(), found.parts);
  return text + paragraph(remark);
}

}  // namespace

std::string values_html(const Report& report, const PageLimits& limits) {
  return for_each_run(report, [&](const RunRecord& run) {
    std::string text;
    for (const ComparedValues& found : run.compared) text += charts(run, found, limits.points);
    return text;
  });
}

}  // namespace trireme::report
