// SPDX-License-Identifier: Apache-2.0
//
// The file of `evaluate --confusion`: how often each class was predicted as each other one, as CSV
// for programs or as a picture. A file is replaced only if it begins as these files do.
#include "confusion_file.hpp"

#include <cstddef>
#include <cstdint>

#include <fmt/format.h>

#include "app/output_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/monitor/bar_chart.hpp"
#include "trireme/monitor/heat_map.hpp"
#include "trireme/report/confusion_matrix.hpp"

namespace trireme::app {
namespace {

constexpr std::size_t max_drawn_classes = 100, max_drawn_pairs = 30;

bool is_picture(const std::string& path) { return path.ends_with(".svg"); }

std::string draw_matrix(const std::string& title, const train::Confusion& confusion,
                        const std::vector<std::string>& names) {
  monitor::HeatMap map{.title = title,
                       .subtitle = "color: part of the true class",
                       .row_label = "true class",
                       .column_label = "predicted class",
                       .names = names,
                       .cells = {}};
  for (const auto& [pair, samples] : confusion)
    if (pair.second >= 0)
      map.cells.push_back({.row = static_cast<std::size_t>(pair.first),
                           .column = static_cast<std::size_t>(pair.second),
                           .count = samples});
  return monitor::to_svg(map);
}

std::string draw_pairs(const std::string& title, const train::Confusion& confusion,
                       const std::vector<std::string>& names) {
  monitor::BarChart chart{
      .title = title,
      .subtitle = fmt::format("the {} pairs of {} classes that were confused most often",
                              max_drawn_pairs, names.size()),
      .x_label = "samples",
      .kinds = {},
      .rows = {},
      .labels_above = true};
  const auto name_of = [&](std::int32_t label) { return names[static_cast<std::size_t>(label)]; };
  for (const train::ConfusedPair& pair : train::most_confused(confusion, max_drawn_pairs))
    chart.rows.push_back(
        {.label = fmt::format("{} predicted as {}", name_of(pair.label), name_of(pair.predicted)),
         .parts = {{.begin = 0,
                    .end = static_cast<double>(pair.samples),
                    .label = fmt::format("{}", pair.samples)}}});
  return monitor::to_svg(chart);
}

}  // namespace

void validate_confusion_file(const std::string& path) {
  constexpr const char* option = "--confusion";
  validate(is_picture(path) || path.ends_with(".csv"),
           "{} {}: the name ends neither in .csv nor in .svg, which choose the form; as in "
           "--confusion confusion.svg",
           option, path);
  validate_output(option, path,
                  is_picture(path) ? OutputForm::confusion_svg : OutputForm::confusion_csv);
}

std::string confusion_csv(const train::Confusion& confusion,
                          const std::vector<std::string>& names) {
  std::string header;
  for (const std::string& name : names) header += (header.empty() ? "" : ",") + csv_cell(name);
  std::string text = fmt::format("{}{}\n", report::confusion_csv_start, header);
  auto next = confusion.begin();  // Pairs are in the order of rows and columns.
  for (std::size_t label = 0; label < names.size(); ++label) {
    text += csv_cell(names[label]);
    if (next != confusion.end() && next->first.second < 0) ++next;  // no class was predicted
    for (std::size_t predicted = 0; predicted < names.size(); ++predicted) {
      const std::pair pair(static_cast<std::int32_t>(label), static_cast<std::int32_t>(predicted));
      const bool is_next = next != confusion.end() && next->first == pair;
      text += fmt::format(",{}", is_next ? (next++)->second : 0);
    }
    text += '\n';
  }
  return text;
}

std::string confusion_svg(const std::string& title, const train::Confusion& confusion,
                          const std::vector<std::string>& names) {
  const std::string svg = names.size() <= max_drawn_classes ? draw_matrix(title, confusion, names)
                                                            : draw_pairs(title, confusion, names);
  constexpr std::string_view tag = "<svg ";
  return std::string(confusion_svg_start) + svg.substr(tag.size());
}

void write_confusion(const std::string& path, const std::string& title,
                     const train::Confusion& confusion, const std::vector<std::string>& names) {
  write_output(path, is_picture(path) ? confusion_svg(title, confusion, names)
                                      : confusion_csv(confusion, names));
}

}  // namespace trireme::app
