// SPDX-License-Identifier: Apache-2.0
//
// The pictures of a page beside its curves: bars of the parts of a step and of the time of a run,
// predictions, memory, results of classes, and norms of tensors. Each function returns the body of
// one section.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "html.hpp"
#include "page_parts.hpp"
#include "trireme/base/text.hpp"
#include "trireme/monitor/heat_map.hpp"
#include "trireme/monitor/svg.hpp"

namespace trireme::report {
namespace {

using monitor::escaped;

std::string shown_name(const Report& report, std::size_t run, const char* what) {
  return report.runs.size() == 1 ? std::string(what)
                                 : fmt::format("{}: {}", report.runs[run].name, what);
}

std::string steps_of(const RunRecord& run, const std::string& name) {
  const train::StepTimes& times = run.history.times;
  const double steps = run.history.timed_steps;
  if (!(steps > 0 && times.total > 0)) return "";
  const double known =
      times.data + times.forward + times.backward + times.comm_exposed + times.optimizer;
  std::vector<BarPart> parts{
      {.name = "forward", .value = times.forward, .color = 0, .text = {}},
      {.name = "backward", .value = times.backward, .color = 1, .text = {}},
      {.name = "update", .value = times.optimizer, .color = 2, .text = {}},
      {.name = "waiting for data", .value = times.data, .color = 3, .text = {}},
      {.name = "communication", .value = times.comm_exposed, .color = 4, .text = {}},
      {.name = "other", .value = times.total - known, .color = 7, .text = {}}};
  for (BarPart& part : parts) part.text = format_short_seconds(part.value / steps);
  return bar(fmt::format("{}: {} a step, mean of {:.0f} steps", name,
                         format_short_seconds(times.total / steps), steps),
             parts) +
         paragraph("The steps are " + run.diagnosis() + ".");
}

std::string ratio_of(double predicted, double measured) {
  return predicted > 0 ? fmt::format("{:.2f}", measured / predicted) : "";
}

std::string prediction_of(const RunRecord& run) {
  const PredictedRun& predicted = *run.predicted;
  const History& history = run.history;
  const double steps = history.timed_steps;
  Table table({"", "predicted", "measured", "measured / predicted"});
  const auto add = [&](const char* name, const std::optional<double>& before,
                       std::optional<double> after, const auto& text_of) {
    if (!before) return;
    table.add_row(name, {text_of(*before), after ? text_of(*after) : "",
                         after ? ratio_of(*before, *after) : ""});
  };
  const auto mean = [&](double seconds) {
    return steps > 0 ? std::optional(seconds / steps) : std::nullopt;
  };
  const auto latest = [&](const char* key) {
    const auto found = history.latest.find(key);
    return found == history.latest.end() ? std::nullopt : std::optional(found->second);
  };
  add("step", predicted.step, mean(history.times.total), format_short_seconds);
  add("forward", predicted.forward, mean(history.times.forward), format_short_seconds);
  add("backward", predicted.backward, mean(history.times.backward), format_short_seconds);
  add("update", predicted.update, mean(history.times.optimizer), format_short_seconds);
  add("samples/s", predicted.samples_per_second, latest("samples_per_s"), short_number);
  add("MFU", predicted.mfu, latest("mfu"), percent);
  add("run", predicted.seconds, run.account ? std::optional(run.account->wall()) : std::nullopt,
      format_seconds);
  add("node-hours", predicted.node_hours,
      run.account ? std::optional(run.account->node_seconds / 3600) : std::nullopt, short_number);
  if (table.is_empty()) return "";
  return paragraph(
             fmt::format("Machine: {}. Measured times are those of rank 0.", predicted.machine)) +
         table.html();
}

/// Returns the color of a part of an account: parts that are often large have strong ones.
int color_of(std::string_view key) {
  constexpr std::array<std::string_view, 2 * colors> keys{
      "evaluate_s", "repeated_s", "train_s",  "checkpoint_s", "hung_s",     "end_s",
      "restore_s",  "queue_s",    "launch_s", "mpi_s",        "allocate_s", "inputs_s",
      "",           "",           "job_s",    "stopped_s"};
  const auto found = std::find(keys.begin(), keys.end(), key);
  return found == keys.end() ? 2 * colors - 4 : static_cast<int>(found - keys.begin());
}

std::string account_of(const RunRecord& run, const std::string& name) {
  if (!run.account) return "";
  const monitor::Account& account = *run.account;
  std::vector<BarPart> parts;
  for (const monitor::Account::Part& part : account.all_parts())
    parts.push_back({.name = part.label,
                     .value = part.seconds,
                     .color = color_of(part.key),
                     .text = format_short_seconds(part.seconds)});
  std::string text = fmt::format(
      "{:.4g} node-hours. Goodput: scheduling {} (time with nodes), runtime {} (of it, steps made "
      "for the first time)",
      account.node_seconds / 3600, percent(account.scheduling_goodput()),
      percent(account.runtime_goodput()));
  if (account.mfu) text += fmt::format(", program {} (MFU)", percent(*account.mfu));
  const CheckpointTotals& checkpoints = run.history.checkpoints;
  if (checkpoints.count > 0)
    text += fmt::format(". {} of {}; steps waited {} for them",
                        counted(checkpoints.count, "checkpoint", "checkpoints"),
                        format_bytes(checkpoints.bytes),
                        format_short_seconds(checkpoints.stall_seconds));
  return bar(fmt::format("{}: {} in {}", name, format_seconds(account.wall()),
                         counted(account.starts, "start", "starts")),
             parts) +
         paragraph(text + ".");
}

std::string classes_of(const ConfusionMatrix& matrix) {
  constexpr std::size_t max_rows = 30, max_drawn = 30, max_pairs = 20;
  const auto name_of = [&](std::int32_t label) {
    return escaped(monitor::shortened(matrix.classes[static_cast<std::size_t>(label)], 40));
  };
  Table table({"class", "samples", "recall", "precision", "F1"});
  const auto scores = train::worst_first(
      train::class_scores(matrix.counts, static_cast<std::int64_t>(matrix.classes.size())));
  const auto part = [](double value) { return std::isnan(value) ? "-" : percent(value); };
  for (std::size_t i = 0; i < scores.size() && i < max_rows; ++i)
    table.add_row({name_of(scores[i].label), fmt::format("{}", scores[i].samples),
                   part(scores[i].recall()), part(scores[i].precision()), part(scores[i].f1())});
  std::string text = fmt::format("<p class=\"name\">{}</p>\n", escaped(matrix.file)) + table.html();
  if (scores.size() > max_rows)
    text += paragraph(fmt::format("the worst {} of {} classes", max_rows, scores.size()));
  if (matrix.classes.size() <= max_drawn) {
    monitor::HeatMap map{.title = "Confusion",
                         .subtitle = "color: part of the true class",
                         .row_label = "true class",
                         .column_label = "predicted class",
                         .names = matrix.classes,
                         .cells = {}};
    for (const auto& [pair, samples] : matrix.counts)
      map.cells.push_back({.row = static_cast<std::size_t>(pair.first),
                           .column = static_cast<std::size_t>(pair.second),
                           .count = samples});
    return text + "<div class=\"wide\">\n" + monitor::to_svg(map) + "</div>\n";
  }
  Table pairs({"class", "predicted as", "samples"});
  for (const train::ConfusedPair& pair : train::most_confused(matrix.counts, max_pairs))
    pairs.add_row({name_of(pair.label), name_of(pair.predicted), fmt::format("{}", pair.samples)});
  return text + pairs.html();
}

// Pixels of the heat map of norms.
constexpr double names_width = 230, cells_width = 560, row_height = 12, head = 16;
constexpr int levels = 12;

/// The range of the values that are above 0, in powers of ten.
struct Powers {
  double low = std::numeric_limits<double>::infinity(), high = -low;
};

/// Draws a quantity of up to 120 tensors as cells: the darker, the larger on a logarithmic scale.
std::string heat_map(const TensorCourse& course, std::size_t quantity) {
  constexpr std::size_t max_rows = 120;
  const std::size_t tensors = course.tensors().size(), columns = course.steps().size(),
                    rows = std::min(tensors, max_rows);
  const auto tensor_of = [&](std::size_t row) { return row * tensors / rows; };
  const auto for_each = [&](const auto& visit) {
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t column = 0; column < columns; ++column)
        if (const double value = course.value(quantity, tensor_of(row), column); value > 0)
          visit(row, column, std::log10(value));
  };
  Powers powers;
  for_each([&](std::size_t, std::size_t, double power) {
    powers.low = std::min(powers.low, power);
    powers.high = std::max(powers.high, power);
  });
  if (powers.low > powers.high) return "";
  const double cell = cells_width / static_cast<double>(columns),
               range = std::max(powers.high - powers.low, 1e-9);
  std::array<std::string, levels> paths;
  for_each([&](std::size_t row, std::size_t column, double power) {
    const int level =
        std::clamp(static_cast<int>(levels * (power - powers.low) / range), 0, levels - 1);
    paths[static_cast<std::size_t>(level)] += fmt::format(
        "M{:.1f} {:.0f}h{:.1f}v{:.0f}H{:.1f}z", names_width + cell * static_cast<double>(column),
        head + row_height * static_cast<double>(row), cell, row_height - 1,
        names_width + cell * static_cast<double>(column));
  });
  std::string body;
  for (int level = 0; level < levels; ++level)
    if (const std::string& path = paths[static_cast<std::size_t>(level)]; !path.empty())
      body += fmt::format("<path fill-opacity=\"{:.2f}\" d=\"{}\"/>\n",
                          0.08 + 0.92 * level / (levels - 1), path);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::string& name = course.tensors()[tensor_of(row)];
    const double y = head + row_height * static_cast<double>(row);
    constexpr std::size_t max_letters = 38;
    Powers of_row;
    double step = 0;
    for (std::size_t column = 0; column < columns; ++column) {
      const double value = course.value(quantity, tensor_of(row), column);
      if (!(value > 0)) continue;
      of_row.low = std::min(of_row.low, value);
      if (value > of_row.high) of_row.high = value, step = course.steps()[column];
    }
    body += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text><rect x=\"0\" y=\"{:.0f}\" "
        "width=\"{:.0f}\" height=\"{:.0f}\"><title>{}: {:.3g} to {:.3g}, largest at step {:.0f}"
        "</title></rect>\n",
        names_width - 6, y + 9, escaped(monitor::shortened(name, max_letters)), y,
        names_width + cells_width, row_height, escaped(name), of_row.low, of_row.high, step);
  }
  const double height = head + row_height * static_cast<double>(rows) + 18;
  body += fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.0f}\">step {:.0f}</text><text x=\"{:.0f}\" y=\"{:.0f}\" "
      "text-anchor=\"end\">step {:.0f}</text>\n",
      names_width, height - 4, course.steps().front(), names_width + cells_width, height - 4,
      course.steps().back());
  const char* const name = TensorCourse::quantities[quantity];
  std::string caption = fmt::format("<b>{}</b>: light {:.2g}, dark {:.2g}, logarithmic", name,
                                    std::pow(10.0, powers.low), std::pow(10.0, powers.high));
  if (rows < tensors) caption += fmt::format("; {} of {} tensors", rows, tensors);
  return fmt::format(
      "<figure>\n<figcaption>{}</figcaption>\n<div class=\"wide\"><svg class=\"heat\" viewBox=\"0 "
      "0 "
      "{:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg></div>\n</figure>\n",
      caption, names_width + cells_width, height, name, body);
}

}  // namespace

std::string steps_html(const Report& report) {
  std::string text;
  for (std::size_t run = 0; run < report.runs.size(); ++run)
    text += steps_of(report.runs[run], shown_name(report, run, "rank 0"));
  return text;
}

std::string predictions_html(const Report& report) {
  std::string text;
  for (std::size_t run = 0; run < report.runs.size(); ++run)
    if (report.runs[run].predicted)
      text += fmt::format("<p class=\"name\">{}</p>\n", run_label(report, run)) +
              prediction_of(report.runs[run]);
  return text;
}

std::string memory_html(const Report& report) {
  Table table({"", "planned, rank 0", "device, in use", "host, in use"});
  for (std::size_t run = 0; run < report.runs.size(); ++run) {
    const auto& latest = report.runs[run].history.latest;
    const auto bytes = [&](const char* key) {
      const auto found = latest.find(key);
      return found == latest.end() ? "" : format_bytes(found->second);
    };
    const std::vector<std::string> cells{bytes("memory_bytes"), bytes("memory_device_bytes"),
                                         bytes("memory_host_bytes")};
    if (std::any_of(cells.begin(), cells.end(), [](const auto& cell) { return !cell.empty(); }))
      table.add_row(run_label(report, run), cells);
  }
  return table.is_empty() ? ""
                          : table.html() + paragraph(
                                               "In use: the latest row, of the rank that "
                                               "uses most of it.");
}

std::string accounts_html(const Report& report) {
  std::string text;
  for (std::size_t run = 0; run < report.runs.size(); ++run)
    text += account_of(report.runs[run], shown_name(report, run, "time"));
  return text;
}

std::string classes_html(const Report& report) {
  std::string text;
  for (std::size_t run = 0; run < report.runs.size(); ++run)
    for (const ConfusionMatrix& matrix : report.runs[run].confusions)
      text += (report.runs.size() == 1
                   ? std::string()
                   : fmt::format("<p class=\"name\">{}</p>\n", run_label(report, run))) +
              classes_of(matrix);
  return text;
}

std::string tensors_html(const Report& report) {
  std::string text;
  for (std::size_t run = 0; run < report.runs.size(); ++run) {
    const TensorCourse& course = report.runs[run].history.tensors;
    if (course.tensors().empty()) continue;
    text += fmt::format("<p class=\"name\">{}</p>\n", run_label(report, run));
    for (std::size_t quantity = 0; quantity < TensorCourse::quantities.size(); ++quantity)
      text += heat_map(course, quantity);
  }
  return text;
}

}  // namespace trireme::report
