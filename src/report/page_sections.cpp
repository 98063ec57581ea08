// SPDX-License-Identifier: Apache-2.0
//
// The pictures of a page beside its curves: bars of the parts of a step and of the time of a run,
// predictions, memory, results of classes, and norms of tensors. Each function returns the body of
// one section.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
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

std::string steps_of(const RunRecord& run) {
  const auto& [times, count] = run.history.steps;
  if (!(count > 0 && times.total > 0)) return "";
  const double known =
      times.data + times.forward + times.backward + times.comm_exposed + times.optimizer;
  std::vector<BarPart> parts{
      {.name = "forward", .value = times.forward, .color = 0, .text = {}},
      {.name = "backward", .value = times.backward, .color = 1, .text = {}},
      {.name = "update", .value = times.optimizer, .color = 2, .text = {}},
      {.name = "waiting for data", .value = times.data, .color = 3, .text = {}},
      {.name = "communication", .value = times.comm_exposed, .color = 4, .text = {}},
      {.name = "other", .value = times.total - known, .color = 7, .text = {}}};
  for (BarPart& part : parts) part.text = format_short_seconds(part.value / count);
  return bar(fmt::format("rank 0: {} a step, mean of {:.0f} steps",
                         format_short_seconds(times.total / count), count),
             parts) +
         paragraph("The steps are " + run.diagnosis() + ".");
}

/// Compares as train::PredictionComparison does: on a GPU the host cannot tell the parts of its
/// work apart. The prediction is that of the latest start, or row of batch.ramp.
std::string prediction_of(const RunRecord& run) {
  if (!run.predicted) return "";
  const PredictedRun& predicted = *run.predicted;
  const auto& [times, count] = run.history.recent_steps;
  Table table({"", "predicted", "measured", "measured / predicted"});
  const auto add = [&](const char* name, const std::optional<double>& before, double after) {
    if (before && *before > 0)
      table.add_row(name, {format_short_seconds(*before), format_short_seconds(after),
                           fmt::format("{:.2f}", after / *before)});
  };
  if (count > 0) {
    add("step", predicted.step, times.total / count);
    if (!run.starts.empty() && run.starts.back().device.starts_with("cpu")) {
      add("forward", predicted.forward, times.forward / count);
      add("backward", predicted.backward, times.backward / count);
      add("update", predicted.update, times.optimizer / count);
    } else {
      add("computation and communication", predicted.step,
          (times.forward + times.backward + times.optimizer + times.comm_exposed) / count);
    }
  }
  const bool is_done =
                 run.life.exit_code && *run.life.exit_code == static_cast<int>(ExitCode::done),
             has_ramp = run.deck && !run.deck->batch.ramp.empty();
  if (is_done && !has_ramp && run.account)
    add("all steps of the run", predicted.seconds,
        run.account->parts[static_cast<std::size_t>(monitor::StartPart::train)] +
            run.account->parts[static_cast<std::size_t>(monitor::StartPart::first_step)]);
  if (table.is_empty()) return "";
  return paragraph(fmt::format("Machine: {}. Measured: means of rank 0 since the latest start.",
                               predicted.machine)) +
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

/// Returns "GPUs 12 kWh, 0.31 J a sample": the energy of the starts that know it.
std::string energy_of(const RunRecord& run) {
  const monitor::Account& account = *run.account;
  const double samples = run.history.train.buckets() == 0
                             ? 0
                             : coordinate(run.history.train.last_place(), Axis::samples);
  const auto tokens = latest_of(run, "tokens_per_s"), rate = latest_of(run, "samples_per_s");
  std::string text;
  const auto add = [&](const monitor::Account::Energy& energy, const std::string& what) {
    if (energy.starts == 0) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", what, format_energy(energy.joules));
    if (energy.starts < account.starts) {
      text += fmt::format(" in {} of {} starts", energy.starts, account.starts);
    } else if (samples > 0) {
      const double of_a_sample = energy.joules / samples;
      text += fmt::format(", {} a sample", format_energy(of_a_sample));
      if (tokens && rate)
        text += fmt::format(", {} a token", format_energy(of_a_sample * *rate / *tokens));
    }
  };
  add(account.gpu_energy, "GPUs");
  add(account.host_energy,
      fmt::format("hosts ({}, {})", account.host_energy_source, account.host_energy_scope));
  if (text.empty()) return "";
  if (run.predicted && run.predicted->joules)
    text += fmt::format("; predicted for whole nodes {}", format_energy(*run.predicted->joules));
  return paragraph("Energy: " + text + ".");
}

std::string account_of(const RunRecord& run) {
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
    text += fmt::format(". {} of {}", counted(checkpoints.count, "checkpoint", "checkpoints"),
                        format_bytes(checkpoints.bytes));
  return bar(fmt::format("{} in {}", format_seconds(account.wall()),
                         counted(account.starts, "start", "starts")),
             parts) +
         paragraph(text + ".") + energy_of(run);
}

std::string classes_of(const ConfusionMatrix& matrix, std::size_t max_rows) {
  const auto name_of = [&](std::int32_t label) {
    return escaped(matrix.classes[static_cast<std::size_t>(label)]);
  };
  Table table({"class", "samples", "recall", "precision", "F1"});
  const auto scores = train::worst_first(matrix.scores);
  const auto part = [](double value) { return std::isnan(value) ? "-" : percent(value); };
  for (std::size_t i = 0; i < scores.size() && i < max_rows; ++i)
    table.add_row({name_of(scores[i].label), fmt::format("{}", scores[i].samples),
                   part(scores[i].recall()), part(scores[i].precision()), part(scores[i].f1())});
  std::string text = fmt::format("<p class=\"name\">{}</p>\n", escaped(matrix.file)) + table.html();
  if (scores.size() > max_rows)
    text += paragraph(fmt::format("the worst {} of {} classes", max_rows, scores.size()));
  if (!matrix.counts.empty() && matrix.classes.size() <= max_rows) {
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
  for (const train::ConfusedPair& pair : matrix.pairs)
    pairs.add_row({name_of(pair.label), name_of(pair.predicted), fmt::format("{}", pair.samples)});
  return text + (pairs.is_empty() ? "" : pairs.html());
}

// Pixels of the heat map of norms.
constexpr double names_width = 230, cells_width = 560, row_height = 12, head = 16;
constexpr int levels = 12;

/// The range of the values above 0 in some cells, and where the largest one is.
struct CellRange {
  double low = std::numeric_limits<double>::infinity(), high = 0, step_of_high = 0;
  void include(double value, double step) {
    if (!(value > 0) || !std::isfinite(value)) return;
    low = std::min(low, value);
    if (value <= high) return;
    high = value;
    step_of_high = step;
  }
  bool is_empty() const { return high == 0; }
};

CellRange range_of(const TensorCourse& course, std::size_t quantity, std::size_t tensor) {
  CellRange range;
  for (std::size_t column = 0; column < course.steps().size(); ++column)
    range.include(course.value(quantity, tensor, column), course.steps()[column]);
  return range;
}

/// Draws a quantity of some tensors as cells: the darker, the larger on a logarithmic scale.
std::string heat_map(const TensorCourse& course, std::size_t quantity, std::size_t max_rows) {
  const std::size_t tensors = course.tensors().size(), columns = course.steps().size(),
                    rows = std::min(tensors, max_rows);
  const auto tensor_of = [&](std::size_t row) { return row * tensors / rows; };
  CellRange whole;
  for (std::size_t row = 0; row < rows; ++row) {
    const CellRange range = range_of(course, quantity, tensor_of(row));
    whole.include(range.low, 0);
    whole.include(range.high, 0);
  }
  if (whole.is_empty()) return "";
  const double cell = cells_width / static_cast<double>(columns), low = std::log10(whole.low),
               width = std::max(std::log10(whole.high) - low, 1e-9);
  // 1. One path for each level, in units of cells. Neighbors of a level are one rectangle.
  std::array<std::string, levels> paths;
  const auto level_of = [&](std::size_t row, std::size_t column) {
    const double value = course.value(quantity, tensor_of(row), column);
    if (!(value > 0) || !std::isfinite(value)) return -1;
    return std::clamp(static_cast<int>(levels * (std::log10(value) - low) / width), 0, levels - 1);
  };
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t column = 0, end = 0; column < columns; column = end) {
      const int level = level_of(row, column);
      for (end = column + 1; end < columns && level_of(row, end) == level;) ++end;
      if (level >= 0)
        paths[static_cast<std::size_t>(level)] +=
            fmt::format("M{} {}h{}v.9h-{}z", column, row, end - column, end - column);
    }
  std::string body =
      fmt::format("<g transform=\"translate({:.0f} {:.0f}) scale({:.4f} {:.0f})\">\n", names_width,
                  head, cell, row_height);
  for (int level = 0; level < levels; ++level)
    if (const std::string& path = paths[static_cast<std::size_t>(level)]; !path.empty())
      body += fmt::format("<path fill-opacity=\"{:.2f}\" d=\"{}\"/>\n",
                          0.08 + 0.92 * level / (levels - 1), path);
  body += "</g>\n";
  // 2. The names, and what a row shows under the pointer.
  for (std::size_t row = 0; row < rows; ++row) {
    constexpr std::size_t max_letters = 38;
    const std::string& name = course.tensors()[tensor_of(row)];
    const double y = head + row_height * static_cast<double>(row);
    const CellRange range = range_of(course, quantity, tensor_of(row));
    const std::string values = range.is_empty()
                                   ? "no value above 0"
                                   : fmt::format("{:.3g} to {:.3g}, largest at step {:.0f}",
                                                 range.low, range.high, range.step_of_high);
    body += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text><rect x=\"0\" y=\"{:.0f}\" "
        "width=\"{:.0f}\" height=\"{:.0f}\"><title>{}: {}</title></rect>\n",
        names_width - 6, y + 9, escaped(monitor::shortened(name, max_letters)), y,
        names_width + cells_width, row_height, escaped(name), values);
  }
  const double height = head + row_height * static_cast<double>(rows) + 18;
  body += fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.0f}\">step {:.0f}</text><text x=\"{:.0f}\" y=\"{:.0f}\" "
      "text-anchor=\"end\">step {:.0f}</text>\n",
      names_width, height - 4, course.steps().front(), names_width + cells_width, height - 4,
      course.steps().back());
  const char* const name = TensorCourse::quantities[quantity];
  std::string caption =
      fmt::format("<b>{}</b>: light {:.2g}, dark {:.2g}, logarithmic", name, whole.low, whole.high);
  if (rows < tensors || course.has_more())
    caption +=
        fmt::format("; {} of {}{} tensors", rows, course.has_more() ? "the first " : "", tensors);
  return fmt::format(
      "<figure>\n<figcaption>{}</figcaption>\n<div class=\"wide\"><svg class=\"heat\" "
      "viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg></div>\n</figure>\n",
      caption, names_width + cells_width, height, name, body);
}

}  // namespace

std::string steps_html(const Report& report) { return for_each_run(report, steps_of); }

std::string predictions_html(const Report& report) { return for_each_run(report, prediction_of); }

std::string memory_html(const Report& report) {
  Table table({"", "planned, rank 0", "predicted, fullest rank", "device, in use", "host, in use"});
  for (std::size_t run = 0; run < report.runs.size(); ++run) {
    const RunRecord& record = report.runs[run];
    const auto text_of = [](const std::optional<double>& bytes) {
      constexpr double largest = 1e15;
      return bytes && *bytes >= 0 && *bytes <= largest ? format_bytes(*bytes) : std::string();
    };
    const std::vector<std::string> cells{
        text_of(latest_of(record, "memory_bytes")),
        text_of(record.predicted ? record.predicted->memory_bytes : std::nullopt),
        text_of(latest_of(record, "memory_device_bytes")),
        text_of(latest_of(record, "memory_host_bytes"))};
    if (std::any_of(cells.begin(), cells.end(), [](const auto& cell) { return !cell.empty(); }))
      table.add_row(run_label(report, run), cells);
  }
  return table.is_empty() ? ""
                          : table.html() + paragraph(
                                               "In use: the latest row, of the rank that "
                                               "uses most of it.");
}

std::string accounts_html(const Report& report) { return for_each_run(report, account_of); }

std::string classes_html(const Report& report, const PageLimits& limits) {
  return for_each_run(report, [&](const RunRecord& run) {
    std::string text;
    for (const ConfusionMatrix& matrix : run.confusions) text += classes_of(matrix, limits.classes);
    return text;
  });
}

std::string tensors_html(const Report& report, const PageLimits& limits) {
  return for_each_run(report, [&](const RunRecord& run) {
    const TensorCourse& course = run.history.tensors;
    std::string text;
    for (std::size_t quantity = 0; quantity < TensorCourse::quantities.size(); ++quantity)
      if (!course.tensors().empty()) text += heat_map(course, quantity, limits.tensors);
    return text;
  });
}

}  // namespace trireme::report
