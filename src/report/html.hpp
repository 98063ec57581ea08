// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "trireme/monitor/svg.hpp"

namespace trireme::report {

/// A table of a page. Cells are HTML.
class Table {
 public:
  explicit Table(const std::vector<std::string>& header) { add("th", header); }
  void add_row(const std::vector<std::string>& cells) { add("td", cells); }
  /// Adds a row with a heading as its first cell.
  void add_row(const std::string& heading, const std::vector<std::string>& cells);
  /// Adds a row with a heading and one cell as wide as all `columns`.
  void add_wide_row(const std::string& heading, const std::string& cell, std::size_t columns);
  bool is_empty() const { return rows_ < 2; }
  std::string html() const;

 private:
  void add(const char* tag, const std::vector<std::string>& cells);
  std::string text_;
  int rows_ = 0;
};

/// The colors of page.css.
inline constexpr int colors = 8;

/// A part of a bar.
struct BarPart {
  std::string name;
  double value = 0;
  int color = 0;     ///< those from `colors` on are paler
  std::string text;  ///< the value for people
};

/// Returns a bar that is divided in proportion to its parts, with a list of them below. Parts of
/// less than a thousandth are left out.
std::string bar(const std::string& name, const std::vector<BarPart>& parts);

std::string paragraph(const std::string& text);

/// Returns "12.3 %".
std::string percent(double part);
/// Returns a number with few letters: "12.5k", "0.031".
std::string short_number(double value, int digits = 4);
/// Returns the ticks of a chart and their labels, as SVG. The pixels of the axes are those of its
/// frame.
std::string grid(const monitor::Axis& x, const monitor::Axis& y, const char* x_label);
/// Returns the labels of ticks, with as many digits as they need to differ.
std::vector<std::string> tick_labels(const std::vector<double>& ticks);

}  // namespace trireme::report
