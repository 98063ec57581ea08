// SPDX-License-Identifier: Apache-2.0
//
// The tables of a page: what was run, ranks and hosts, events, starts, decks. Each function returns
// the body of one section.
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>

#include "html.hpp"
#include "page_parts.hpp"
#include "trireme/base/answer.hpp"
#include "trireme/base/text.hpp"
#include "trireme/monitor/svg.hpp"
#include "trireme/train/records/run_life.hpp"

namespace trireme::report {
namespace {

using monitor::escaped;

/// Returns the keys of a table of a deck in one line, without those of other tables.
std::string table_of(const std::string& deck, const std::string& table) {
  constexpr std::size_t max_bytes = 400;
  std::string_view rest = deck;
  std::string text;
  bool is_inside = false;
  while (!rest.empty()) {
    const std::string_view line = take_line(rest);
    if (line.starts_with('['))
      is_inside = line.starts_with("[" + table + "]");
    else if (is_inside && !line.empty())
      text += (text.empty() ? "" : ", ") + std::string(line);
  }
  return printable(text, max_bytes);
}

std::string state_of(const RunRecord& run) {
  const auto& code = run.life.exit_code;
  const bool is_good = run.life.is_running() || (code && *code == static_cast<int>(ExitCode::done)),
             is_stopped = code && *code == static_cast<int>(ExitCode::stopped_early);
  return fmt::format("<span class=\"{}\">{}</span>",
                     is_good      ? "good"
                     : is_stopped ? "soft"
                                  : "bad",
                     escaped(train::describe(run.life)));
}

/// Returns "loss 0.31 (best 0.30)", or that the latest value is not finite. `form`: of a value.
std::string value_and_best(const EvaluationMetric& metric,
                           const std::map<std::string, double>& latest, const Track& track) {
  const auto index = index_of(track, metric.word);
  const Track::Range range = index ? track.whole_range(*index) : Track::Range();
  if (!range.has_values()) return "";
  const auto found = latest.find(metric.word);
  return fmt::format("{} {} (best {})", metric.label,
                     found == latest.end() ? "not finite" : value_text(metric, found->second),
                     value_text(metric, metric.is_better_if_higher ? range.high : range.low));
}

std::string evaluations_of(const RunRecord& run) {
  std::string text;
  for (const auto& [set, latest] : run.history.latest_evaluations) {
    const Track& track = run.history.evaluations.at(set);
    std::vector<std::string> parts;
    for (const EvaluationMetric& metric : evaluation_metrics())
      parts.push_back(value_and_best(metric, latest, track));
    std::erase(parts, "");
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : "<br>", escaped(set), fmt::join(parts, ", "));
  }
  return text;
}

std::string loss_of(const RunRecord& run) {
  if (run.history.train.buckets() == 0) return "";
  const auto loss = latest_of(run, "loss");
  return loss ? fmt::format("{:.4g}", *loss) : "<span class=\"bad\">not finite</span>";
}

std::string progress_of(const RunRecord& run) {
  const Track& train = run.history.train;
  if (train.buckets() == 0) return "";
  const Place& place = train.last_place();
  std::string text = fmt::format("{:.0f}", coordinate(place, Axis::step));
  if (const double epoch = coordinate(place, Axis::epoch); epoch >= 0)
    text += fmt::format(", epoch {:.2f}", epoch);
  if (run.deck) text += fmt::format("; ends after {}", escaped(to_string(run.deck->run.stop)));
  return text;
}

std::string hardware_of(const RunRecord& run) {
  if (run.starts.empty()) return "";
  const StartEntry& start = run.starts.back();
  return fmt::format("{} on {}, each {}", counted(std::ssize(run.hosts), "rank", "ranks"),
                     counted(static_cast<std::int64_t>(start.hosts), "host", "hosts"),
                     escaped(start.device));
}

std::string speed_of(const RunRecord& run) {
  const StepSums& steps = run.history.steps;
  if (steps.count == 0) return "";
  std::string text = format_short_seconds(steps.times.total / steps.count) + " a step";
  if (const auto samples = latest_of(run, "samples_per_s"))
    text += fmt::format("; last {:.4g} samples/s", *samples);
  if (const auto mfu = latest_of(run, "mfu")) text += fmt::format(", MFU {}", percent(*mfu));
  return text;
}

std::string time_of(const RunRecord& run) {
  if (!run.account) return "";
  return fmt::format("{} in {}, {:.4g} node-hours", format_seconds(run.account->wall()),
                     counted(run.account->starts, "start", "starts"),
                     run.account->node_seconds / 3600);
}

std::string version_of(const RunRecord& run) {
  if (run.starts.empty()) return "";
  const StartEntry& start = run.starts.back();
  return escaped(start.revision.empty() ? start.version
                                        : fmt::format("{}, {}", start.version, start.revision));
}

std::string table_text(const RunRecord& run, const char* table) {
  return escaped(table_of(run.deck_text, table));
}

/// Joins numbers in increasing order: "0-3, 8".
std::string ranges_of(const std::set<int>& numbers) {
  constexpr std::size_t max_bytes = 200;
  std::string text;
  for (auto next = numbers.begin(); next != numbers.end();) {
    const int first = *next;
    int last = first;
    while (++next != numbers.end() && *next == last + 1) ++last;
    text += text.empty() ? "" : ", ";
    if (text.size() > max_bytes) return text + "...";
    text += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
  }
  return text;
}

/// The ranks of one host, and their places in the layout.
struct HostRanks {
  std::set<int> ranks, data, tensor, stages;
  std::set<std::string> devices;
};

std::string ranks_of(const RunRecord& run, std::size_t max_hosts) {
  constexpr std::size_t max_devices = 4;
  std::vector<std::string> order;
  std::map<std::string, HostRanks> hosts;
  for (std::size_t rank = 0; rank < run.hosts.size(); ++rank) {
    const std::string& name = run.hosts[rank];
    if (!hosts.contains(name)) order.push_back(name);
    HostRanks& host = hosts[name];
    host.ranks.insert(static_cast<int>(rank));
    if (rank < run.devices.size()) host.devices.insert(run.devices[rank]);
    if (!run.mesh) continue;
    const auto place = parallel::coordinates_of(*run.mesh, static_cast<int>(rank));
    host.data.insert(place.data_rank);
    host.tensor.insert(place.tensor_rank);
    host.stages.insert(place.stage);
  }
  Table table({"host", "ranks", "data ranks", "tensor ranks", "stages", "devices"});
  for (std::size_t i = 0; i < order.size() && i < max_hosts; ++i) {
    const HostRanks& host = hosts[order[i]];
    std::string devices;
    std::size_t shown = 0;
    for (const std::string& device : host.devices)
      if (shown++ < max_devices) devices += (devices.empty() ? "" : "<br>") + escaped(device);
    if (shown > max_devices) devices += fmt::format("<br>and {} more", shown - max_devices);
    table.add_row({escaped(order[i]), ranges_of(host.ranks), ranges_of(host.data),
                   ranges_of(host.tensor), ranges_of(host.stages), devices});
  }
  std::string text = paragraph(run.starts.back().layout) + table.html();
  if (order.size() > max_hosts)
    text += paragraph(fmt::format("and {} more hosts", order.size() - max_hosts));
  return text;
}

/// Escapes a text of several lines.
std::string escaped_lines(std::string_view text) {
  std::string result;
  while (!text.empty()) result += escaped(std::string(take_line(text))) + "\n";
  return result;
}

std::string details(const std::string& summary, const std::string& body) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", summary, body);
}

std::string events_of(const RunRecord& run) {
  const History& history = run.history;
  if (history.events == 0) return "";
  const std::int64_t count = history.events;
  std::string kinds;
  for (const auto& [kind, times] : history.event_counts)
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", kind, times);
  Table table({"step", "time", "event", "what happened"});
  const auto add = [&](const Event& event) {
    table.add_row({fmt::format("{}", event.step), format_seconds(event.seconds),
                   escaped(event.kind), escaped(event.detail)});
  };
  for (const Event& event : history.first_events) add(event);
  const auto shown = std::ssize(history.first_events) + std::ssize(history.last_events);
  if (shown < count) table.add_row({"", "", "", fmt::format("{} more events", count - shown)});
  for (const Event& event : history.last_events) add(event);
  const std::string body = table.html();
  constexpr std::int64_t few = 20;
  return paragraph(kinds) +
         (count <= few ? body : details(counted(count, "event", "events"), body));
}

std::string starts_of(const RunRecord& run) {
  if (run.starts.empty()) return "";
  Table table({"time", "job", "kind", "from", "layout", "hosts", "version", "deck"});
  for (const StartEntry& start : run.starts) {
    table.add_row({escaped(start.time), escaped(start.job), escaped(start.restart),
                   escaped(start.checkpoint), escaped(start.layout), fmt::format("{}", start.hosts),
                   escaped(start.version), escaped(start.deck)});
  }
  std::string text = table.html();
  if (run.starts.size() < run.start_count)
    text += paragraph(fmt::format("{} starts are left out", run.start_count - run.starts.size()));
  return text + paragraph("Last command: " + run.starts.back().command);
}

}  // namespace

std::string summary_html(const Report& report) {
  struct Row {
    const char* name;
    std::function<std::string(const RunRecord&)> text_of;
  };
  const std::vector<Row> rows{
      {"state", state_of},
      {"steps", progress_of},
      {"training loss", loss_of},
      {"evaluation", evaluations_of},
      {"speed", speed_of},
      {"time", time_of},
      {"machine", hardware_of},
      {"layout",
       [](const RunRecord& run) {
         return run.starts.empty() ? std::string() : escaped(run.starts.back().layout);
       }},
      {"model", [](const RunRecord& run) { return table_text(run, "model"); }},
      {"data", [](const RunRecord& run) { return table_text(run, "data"); }},
      {"batch", [](const RunRecord& run) { return table_text(run, "batch"); }},
      {"optimizer", [](const RunRecord& run) { return table_text(run, "optimizer"); }},
      {"schedule", [](const RunRecord& run) { return table_text(run, "schedule"); }},
      {"precision", [](const RunRecord& run) { return table_text(run, "precision"); }},
      {"program", version_of},
      {"folder", [](const RunRecord& run) { return escaped(run.path); }},
      {"not read", [](const RunRecord& run) {
         std::string text;
         for (const std::string& trouble : run.troubles)
           text += (text.empty() ? "" : "<br>") +
                   fmt::format("<span class=\"bad\">{}</span>", escaped(trouble));
         return text;
       }}};
  std::vector<std::string> header{""};
  for (std::size_t run = 0; run < report.runs.size(); ++run)
    header.push_back(run_label(report, run));
  Table table(header);
  for (const Row& row : rows) {
    std::vector<std::string> cells;
    for (const RunRecord& run : report.runs) cells.push_back(row.text_of(run));
    const bool is_one_text = std::all_of(cells.begin(), cells.end(),
                                         [&](const std::string& cell) { return cell == cells[0]; });
    if (is_one_text && !cells[0].empty())
      table.add_wide_row(row.name, cells[0], cells.size());
    else if (!is_one_text)
      table.add_row(row.name, cells);
  }
  return table.html();
}

std::string ranks_html(const Report& report, const PageLimits& limits) {
  return for_each_run(report, [&](const RunRecord& run) {
    return run.hosts.empty() ? std::string() : ranks_of(run, limits.hosts);
  });
}

std::string events_html(const Report& report) { return for_each_run(report, events_of); }

std::string starts_html(const Report& report) { return for_each_run(report, starts_of); }

std::string differences_html(const Report& report) {
  const auto& runs = report.runs;
  const auto first = std::find_if(runs.begin(), runs.end(),
                                  [](const RunRecord& run) { return run.deck.has_value(); });
  if (first == runs.end()) return "";
  std::map<std::string, std::vector<std::string>> values;  // key -> value in each run
  std::map<std::string, std::string> of_first;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    if (!runs[run].deck) continue;
    for (const deck::Difference& difference : deck::differences(*first->deck, *runs[run].deck)) {
      of_first[difference.key] = difference.before;
      std::vector<std::string>& row = values[difference.key];
      row.resize(runs.size());
      row[run] = difference.after.empty() ? "-" : difference.after;
    }
  }
  std::vector<std::string> header{"key"};
  for (std::size_t run = 0; run < runs.size(); ++run) header.push_back(run_label(report, run));
  Table table(header);
  for (auto& [key, row] : values) {
    const std::string before = of_first[key].empty() ? "-" : of_first[key];
    std::vector<std::string> cells;
    for (std::size_t run = 0; run < row.size(); ++run)
      cells.push_back(!runs[run].deck ? "?"
                                      : escaped(printable(row[run].empty() ? before : row[run])));
    table.add_row(escaped(key), cells);
  }
  return table.is_empty() ? "" : table.html();
}

std::string decks_html(const Report& report, const PageLimits& limits) {
  std::string text;
  for (std::size_t run = 0; run < report.runs.size(); ++run)
    if (const std::string& deck = report.runs[run].deck_text; !deck.empty()) {
      std::string body =
          "<pre>" + escaped_lines(std::string_view(deck).substr(0, limits.deck_bytes)) + "</pre>\n";
      if (deck.size() > limits.deck_bytes)
        body += paragraph(fmt::format("{} of {} bytes", limits.deck_bytes, deck.size()));
      text += details(run_label(report, run), body);
    }
  return text;
}

}  // namespace trireme::report
