// SPDX-License-Identifier: Apache-2.0
//
// The elements of a page: tables, bars, numbers for people, and the ticks of charts.
#include "html.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace trireme::report {

using monitor::escaped;

void Table::add(const char* tag, const std::vector<std::string>& cells) {
  text_ += "<tr>";
  for (const std::string& cell : cells) text_ += fmt::format("<{0}>{1}</{0}>", tag, cell);
  text_ += "</tr>\n";
  ++rows_;
}

void Table::add_row(const std::string& heading, const std::vector<std::string>& cells) {
  text_ += fmt::format("<tr><th>{}</th>", heading);
  for (const std::string& cell : cells) text_ += fmt::format("<td>{}</td>", cell);
  text_ += "</tr>\n";
  ++rows_;
}

void Table::add_wide_row(const std::string& heading, const std::string& cell, std::size_t columns) {
  text_ += fmt::format("<tr><th>{}</th><td colspan=\"{}\">{}</td></tr>\n", heading, columns, cell);
  ++rows_;
}

std::string Table::html() const {
  return "<div class=\"wide\"><table>\n" + text_ + "</table></div>\n";
}

std::string bar(const std::string& name, const std::vector<BarPart>& parts) {
  constexpr double min_part = 1e-3;
  double sum = 0;
  for (const BarPart& part : parts) sum += part.value;
  if (!(sum > 0)) return "";
  std::string pieces, list;
  for (const BarPart& part : parts) {
    if (!(part.value >= min_part * sum)) continue;
    const std::string color_class =
        fmt::format("b{}{}", part.color % colors, part.color < colors ? "" : " half");
    const std::string text =
        escaped(fmt::format("{} {} ({})", part.name, part.text, percent(part.value / sum)));
    pieces += fmt::format("<span class=\"{}\" style=\"width:{:.2f}%\" title=\"{}\"></span>",
                          color_class, 100 * part.value / sum, text);
    list += fmt::format("<li><i class=\"{}\"></i>{}</li>", color_class, text);
  }
  return fmt::format(
      "<p class=\"name\">{}</p><div class=\"bar\">{}</div><ul class=\"key\">{}</ul>\n",
      escaped(name), pieces, list);
}

std::string paragraph(const std::string& text) { return fmt::format("<p>{}</p>\n", escaped(text)); }

std::string percent(double part) { return fmt::format("{:.1f} %", 100 * part); }

std::string short_number(double value, int digits) {
  struct Unit {
    double from, size;
    const char* letter;
  };
  // The unit is that of the rounded number: 9999.9 is "10k".
  double rounded = value;
  const std::string text = fmt::format("{:.{}g}", value, digits);
  std::from_chars(text.data(), text.data() + text.size(), rounded);
  for (const auto& [from, size, letter] :
       {Unit{1e12, 1e12, "T"}, {1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}})
    if (std::abs(rounded) >= from && std::abs(rounded) < 1e15)
      return fmt::format("{:.{}g}{}", rounded / size, digits, letter);
  return std::abs(rounded) < 1e4 && std::abs(rounded) >= 1 ? fmt::format("{:.6g}", rounded) : text;
}

std::vector<std::string> tick_labels(const std::vector<double>& ticks) {
  constexpr int min_digits = 4, max_digits = 15;
  for (int digits = min_digits;; ++digits) {
    std::vector<std::string> labels;
    for (const double tick : ticks) labels.push_back(short_number(tick, digits));
    const bool differ = std::adjacent_find(labels.begin(), labels.end()) == labels.end();
    if (differ || digits == max_digits) return labels;
  }
}

std::string grid(const monitor::Axis& x, const monitor::Axis& y, const char* x_label) {
  const double left = x.first_pixel, right = x.last_pixel, bottom = y.first_pixel;
  std::string text;
  const std::vector<double> x_ticks = x.ticks(), y_ticks = y.ticks();
  const std::vector<std::string> x_labels = tick_labels(x_ticks), y_labels = tick_labels(y_ticks);
  for (std::size_t i = 0; i < y_ticks.size(); ++i)
    text += fmt::format(
        "<line class=\"grid\" x1=\"{0:.0f}\" y1=\"{1:.1f}\" x2=\"{2:.0f}\" y2=\"{1:.1f}\"/>"
        "<text x=\"{3:.0f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        left, y.pixel(y_ticks[i]), right, left - 6, y.pixel(y_ticks[i]) + 4, y_labels[i]);
  text += "<g class=\"x-axis\">";
  for (std::size_t i = 0; i < x_ticks.size(); ++i)
    text += fmt::format(
        "<line class=\"tick\" x1=\"{0:.1f}\" y1=\"{1:.0f}\" x2=\"{0:.1f}\" y2=\"{2:.0f}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.0f}\" text-anchor=\"middle\">{4}</text>",
        x.pixel(x_ticks[i]), bottom, bottom + 4, bottom + 17, x_labels[i]);
  text += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text></g>\n",
                      (left + right) / 2, bottom + 33, x_label);
  return text;
}

}  // namespace trireme::report
