// SPDX-License-Identifier: Apache-2.0
#include "html.hpp"

#include <cmath>

#include <fmt/format.h>

#include "trireme/monitor/svg.hpp"

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
  constexpr double least = 1e-3;
  double sum = 0;
  for (const BarPart& part : parts) sum += part.value;
  if (!(sum > 0)) return "";
  std::string pieces, list;
  for (const BarPart& part : parts) {
    if (!(part.value >= least * sum)) continue;
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

std::string short_number(double value) {
  struct Unit {
    double size;
    const char* letter;
  };
  for (const auto& [size, letter] : {Unit{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}})
    if (std::abs(value) >= size && std::abs(value) < 1e15) {
      const double unit = size == 1e4 ? 1e3 : size;
      return fmt::format("{:.4g}{}", value / unit, letter);
    }
  return fmt::format("{:.4g}", value);
}

}  // namespace trireme::report
