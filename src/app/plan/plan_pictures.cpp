// SPDX-License-Identifier: Apache-2.0
//
// The pictures of `trireme plan`: --timeline draws one simulated step, --memory-plot draws what the
// memory of ranks is used for.
#include "plan_pictures.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "app/output_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/monitor/bar_chart.hpp"
#include "trireme/plan/timeline.hpp"
#include "trireme/train/records/describe.hpp"

namespace trireme::app {
namespace {

using monitor::BarChart;
using monitor::BarPart;
using monitor::BarRow;
using plan::StageSpan;

// Colors of the timeline. Gray, the last color, is for waits.
enum class TimelineKind : std::uint8_t {
  forward,
  backward,
  update,
  tensor,
  data,
  pipeline,
  other,
  wait
};
const std::vector<std::string> timeline_kinds{"forward",
                                              "backward",
                                              "update",
                                              "sums and gathers of tensor ranks",
                                              "sums and gathers of data ranks",
                                              "messages of stages",
                                              "other groups",
                                              "waits"};
// More stages have no bars of requests.
constexpr int max_stages_with_requests = 16;

TimelineKind kind_of_group(std::string_view group) {
  if (group == "tensor") return TimelineKind::tensor;
  if (group == "data" || group == "delayed data") return TimelineKind::data;
  return group == "pipeline" ? TimelineKind::pipeline : TimelineKind::other;
}

TimelineKind kind_of_span(const StageSpan& span) {
  switch (span.kind) {
    case StageSpan::Kind::forward: return TimelineKind::forward;
    case StageSpan::Kind::backward: return TimelineKind::backward;
    case StageSpan::Kind::update: return TimelineKind::update;
    case StageSpan::Kind::wait: return TimelineKind::wait;
    case StageSpan::Kind::request: break;
  }
  return kind_of_group(span.group);
}

/// A unit of which a step or a rank has 1 to 1000.
struct Unit {
  const char* name;
  double size;
};

Unit unit_of_seconds(double seconds) {
  if (seconds >= 1) return {"seconds", 1};
  return seconds >= 1e-3 ? Unit{"milliseconds", 1e-3} : Unit{"microseconds", 1e-6};
}

Unit unit_of_bytes(double bytes) {
  if (bytes >= 0x1p30) return {"GiB", 0x1p30};
  return bytes >= 0x1p20 ? Unit{"MiB", 0x1p20} : Unit{"KiB", 0x1p10};
}

/// Joins waits with short ones behind them, and leaves out what nobody sees. `least`: the shortest
/// visible time. Waits of several times that have the height of the bar.
std::vector<BarPart> visible(const std::vector<BarPart>& wait_parts, double least) {
  std::vector<BarPart> joined;
  for (const BarPart& wait : wait_parts) {
    if (!joined.empty() && wait.begin - joined.back().end < least / 4)
      joined.back().end = wait.end;
    else
      joined.push_back(wait);
  }
  std::erase_if(joined, [&](const BarPart& wait) { return wait.end - wait.begin < least; });
  for (BarPart& wait : joined) wait.is_low = wait.end - wait.begin < 12 * least;
  return joined;
}

/// Appends an action without the long waits in it. The longest piece has its label.
void append_action(std::vector<BarPart>& parts, const BarPart& action,
                   const std::vector<BarPart>& wait_parts) {
  const auto first = static_cast<std::ptrdiff_t>(parts.size());
  const auto append = [&](double begin, double end) {
    if (end > begin) parts.push_back({.begin = begin, .end = end, .kind = action.kind});
  };
  double begin = action.begin;
  const auto later = std::ranges::lower_bound(wait_parts, action.begin, {}, &BarPart::end);
  for (auto wait = later; wait != wait_parts.end() && wait->begin < action.end; ++wait) {
    if (wait->is_low) continue;
    append(begin, wait->begin);
    begin = wait->end;
  }
  append(begin, action.end);
  const auto longest = std::max_element(
      parts.begin() + first, parts.end(),
      [](const BarPart& a, const BarPart& b) { return a.end - a.begin < b.end - b.begin; });
  if (longest != parts.end()) longest->label = action.label;
}

/// The bars of one stage.
struct StageRows {
  std::vector<BarPart> actions, wait_parts;  // wait_parts lie within actions
  std::map<TimelineKind, BarRow> requests;
};

// Memory.

/// An arena, or several of one use, with its color.
struct Use {
  const char* name;
  std::int64_t bytes;
};

std::array<Use, 8> uses_of(const train::MemoryPlan& plan, const plan::Machine& machine) {
  // CPU ranks have no other memory than that of the host.
  const bool is_gpu = machine.device.kind == plan::MachineKind::gpu;
  const std::int64_t weights = plan.parameters + plan.prepared_weights,
                     activations = plan.all_activations() - plan.recompute;
  // A plan of training has no keys and values of earlier positions.
  const std::int64_t rest = plan.total() - (weights + plan.gradients + plan.optimizer +
                                            activations + plan.recompute + plan.workspace);
  TRIREME_EXPECT(rest >= 0);
  return {{{"weights", weights},
           {"gradients", plan.gradients},
           {"optimizer", plan.optimizer},
           {"activations", activations},
           {"recomputed activations", plan.recompute},
           {"workspace", plan.workspace},
           {"batches and status", rest},
           {is_gpu ? "context and libraries" : "offloaded, context and libraries",
            machine.overhead.reserved_bytes + (is_gpu ? 0 : plan.host_total())}}};
}

BarChart memory_chart(const plan::Machine& machine, int ranks,
                      const std::vector<std::pair<std::string, train::MemoryPlan>>& places) {
  const bool is_gpu = machine.device.kind == plan::MachineKind::gpu;
  const double limit = static_cast<double>(machine.memory.bytes) / (is_gpu ? 1 : ranks);
  double most = 1;
  for (const auto& [label, plan] : places)
    most = std::max(most, static_cast<double>(plan::bytes_of_rank(machine, plan)));
  const Unit unit = unit_of_bytes(most);
  BarChart chart;
  chart.x_label = unit.name;
  for (const auto& [label, plan] : places) {
    BarRow row{.label = label, .parts = {}};
    double end = 0;
    int kind = 0;
    for (const Use& use : uses_of(plan, machine)) {
      const double begin = end;
      end += static_cast<double>(use.bytes) / unit.size;
      if (use.bytes > 0)
        row.parts.push_back({.begin = begin,
                             .end = end,
                             .kind = kind,
                             .label = fmt::format("{:.3g}", end - begin)});
      ++kind;
    }
    chart.rows.push_back(std::move(row));
  }
  for (const Use& use : uses_of({}, machine)) chart.kinds.emplace_back(use.name);
  // The last use is that of few machine files.
  const int last = static_cast<int>(chart.kinds.size()) - 1;
  if (std::ranges::none_of(chart.rows, [&](const BarRow& row) {
        return std::ranges::any_of(row.parts, [&](const auto& part) { return part.kind == last; });
      }))
    chart.kinds.pop_back();
  // A line far away would leave the bars no room.
  const std::string what = is_gpu ? "of a GPU" : "for each rank of the node";
  if (limit < 4 * most) {
    chart.mark = limit / unit.size;
    chart.mark_label = fmt::format("{} {}", format_bytes(limit), what);
  } else {
    chart.subtitle = fmt::format("{} {}", is_gpu ? "a GPU has" : "a rank's share of the node is",
                                 format_bytes(limit));
  }
  return chart;
}

void write_picture(const std::string& path, const std::string& svg, const char* what,
                   bool is_quiet) {
  write_output(path, svg);
  if (!is_quiet) fmt::print("{:<11}{}: {}\n", "picture", path, what);
}

}  // namespace

void add_picture_options(Command& command, PlanPictures& pictures) {
  command
      .option("--timeline", pictures.timeline,
              "Draw the simulated step as an SVG picture: actions, waits and requests of each "
              "stage")
      .type_name("FILE");
  command
      .option("--memory-plot", pictures.memory,
              "Draw what the memory of ranks is used for as an SVG picture; with --search of each "
              "layout that is listed")
      .type_name("FILE");
}

void validate_pictures(const PlanPictures& pictures) {
  if (!pictures.timeline.empty()) validate_output("--timeline", pictures.timeline, OutputForm::svg);
  if (!pictures.memory.empty()) validate_output("--memory-plot", pictures.memory, OutputForm::svg);
}

void write_pictures(const PlanPictures& pictures, const PlanReport& report, bool is_quiet) {
  if (!pictures.timeline.empty())
    write_picture(pictures.timeline, draw_timeline(report), "one step", is_quiet);
  if (!pictures.memory.empty())
    write_picture(pictures.memory, draw_memory(report), "the memory of the ranks", is_quiet);
}

void write_pictures(const PlanPictures& pictures, const SearchReport& report, bool is_quiet) {
  if (!pictures.memory.empty())
    write_picture(pictures.memory, draw_memory(report), "the memory of the layouts", is_quiet);
}

std::string draw_timeline(const PlanReport& report) {
  // 1. The step again, now with its spans.
  const train::ResolvedLayout& layout = report.run.rows.front();
  const plan::Timeline timeline =
      plan::simulate(report.prediction.steps(), planned_costs(report), plan::TimelineDetail::spans);
  // 2. Bars from its begin on the first stage that begins it.
  double origin = timeline.stages.front().begin, end = 0;
  for (const plan::StageTimes& stage : timeline.stages) {
    origin = std::min(origin, stage.begin);
    end = std::max(end, stage.end);
  }
  const Unit unit = unit_of_seconds(end - origin);
  const bool has_requests = std::ssize(timeline.stages) <= max_stages_with_requests;
  std::vector<StageRows> stages(timeline.stages.size());
  for (const StageSpan& span : timeline.spans) {
    StageRows& stage = stages[static_cast<std::size_t>(span.stage)];
    BarPart part{.begin = std::max(0.0, span.begin - origin) / unit.size,
                 .end = (std::min(span.end, end) - origin) / unit.size};
    if (part.end <= part.begin) continue;
    const bool is_action =
        span.kind == StageSpan::Kind::forward || span.kind == StageSpan::Kind::backward;
    if (is_action) part.label = fmt::format("{}", span.micro_batch);
    const TimelineKind kind = kind_of_span(span);
    part.kind = static_cast<int>(kind);
    if (span.kind == StageSpan::Kind::wait)
      stage.wait_parts.push_back(std::move(part));
    else if (span.kind != StageSpan::Kind::request)
      stage.actions.push_back(std::move(part));
    else if (has_requests)
      stage.requests[kind].parts.push_back(std::move(part));
  }
  // 3. The chart.
  BarChart chart{
      .title = fmt::format("A step of {}, predicted for {}", report.run.deck.run.name,
                           report.machine.name),
      .subtitle = fmt::format("{}; {}", train::describe_layout(report.run.deck.parallel, layout),
                              counted(layout.accumulation, "micro-batch", "micro-batches")),
      .x_label = unit.name,
      .kinds = timeline_kinds,
      .rows = {}};
  for (std::size_t i = 0; i < stages.size(); ++i) {
    StageRows& stage = stages[i];
    const std::vector<BarPart> seen = visible(stage.wait_parts, (end - origin) / unit.size / 1500);
    BarRow row{.label = fmt::format("stage {}", i), .parts = {}};
    for (const BarPart& action : stage.actions) append_action(row.parts, action, seen);
    row.parts.insert(row.parts.end(), seen.begin(), seen.end());
    chart.rows.push_back(std::move(row));
    for (auto& [kind, requests] : stage.requests) {
      requests.is_thin = true;
      requests.label = kind == TimelineKind::tensor     ? "tensor"
                       : kind == TimelineKind::data     ? "data"
                       : kind == TimelineKind::pipeline ? "messages"
                                                        : "others";
      chart.rows.push_back(std::move(requests));
    }
  }
  return monitor::to_svg(chart);
}

std::string draw_memory(const PlanReport& report) {
  const plan::Prediction& run = report.prediction;
  std::vector<std::pair<std::string, train::MemoryPlan>> places;
  for (const plan::Place& place : run.places)
    places.emplace_back(fmt::format("stage {}, rank {}", place.stage, place.rank), place.memory);
  BarChart chart = memory_chart(report.machine, run.ranks, places);
  chart.title =
      fmt::format("Memory of the ranks of {} on {}", report.run.deck.run.name, report.machine.name);
  const std::string layout =
      train::describe_layout(report.run.deck.parallel, report.run.rows.front());
  chart.subtitle = chart.subtitle.empty() ? layout : layout + "; " + chart.subtitle;
  return monitor::to_svg(chart);
}

std::string draw_memory(const SearchReport& report) {
  std::vector<std::pair<std::string, train::MemoryPlan>> places;
  for (const plan::FoundLayout& found : report.result.best)
    places.emplace_back(fmt::format("{}. {} a step: {}", places.size() + 1,
                                    format_short_seconds(found.seconds()), describe_found(found)),
                        found.memory);
  BarChart chart = memory_chart(report.machine, report.ranks, places);
  chart.title = fmt::format("Memory of the largest rank of {} on {}, by layout",
                            report.run.deck.run.name, report.machine.name);
  const std::string what =
      fmt::format("the fastest layouts of {}", counted(report.ranks, "rank", "ranks"));
  chart.subtitle = chart.subtitle.empty() ? what : what + "; " + chart.subtitle;
  chart.labels_above = true;
  return monitor::to_svg(chart);
}

}  // namespace trireme::app
