// SPDX-License-Identifier: Apache-2.0
//
// `trireme check DECK --schedule FILE`: draws the schedule of a run, by the code that trains.
#include "schedule_plot.hpp"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/monitor/plot.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/train/run/run_clock.hpp"

namespace trireme::app {
namespace {

// One for each pixel of the diagram. A longer run shows the first and the last step of each column.
constexpr std::int64_t max_plot_columns = 660;

/// Returns the steps whose values are drawn, in increasing order.
std::vector<std::int64_t> steps_to_draw(std::int64_t total) {
  std::vector<std::int64_t> steps;
  const std::int64_t columns = std::min(total, max_plot_columns);
  for (std::int64_t column = 0; column < columns; ++column) {
    const std::int64_t first = 1 + total * column / columns, last = total * (column + 1) / columns;
    steps.push_back(first);
    if (last > first) steps.push_back(last);
  }
  return steps;
}

std::string subtitle_of(const deck::Deck& deck, const optim::Schedule& schedule,
                        std::int64_t steps) {
  std::string text = fmt::format(
      "peak {:.6g}, {}{} a step, {}", schedule.peak(), deck.batch.ramp.empty() ? "" : "up to ",
      counted(deck.batch.max_global(), "sample", "samples"), counted(steps, "step", "steps"));
  if (deck.schedule.kind == optim::ScheduleKind::plateau)
    text += "; as if no evaluation after the first one improved";
  return text;
}

}  // namespace

std::string draw_schedule(const deck::Deck& deck, const train::ResolvedLayout& layout,
                          const std::string& path) {
  const std::int64_t total = layout.last_step();
  validate(total > 0,
           "run.stop = \"{}\" is a time, so --schedule does not know how many steps to draw; give "
           "schedule.length, as in length = \"90 epochs\"",
           to_string(deck.run.stop));
  const optim::Schedule schedule(deck.schedule, deck.batch.global, layout.schedule_steps,
                                 layout.scale);
  // Runs of less than an epoch are drawn over their steps.
  const bool over_steps = layout.scale.samples_after(total) < layout.scale.samples_per_epoch;
  const bool has_momentum = deck.schedule.varies_momentum(*deck.optimizer.rule),
             has_ramp = !layout.scale.rows.empty();
  monitor::PlotPanel rates{.label = "learning rate", .points = {}},
      momentum{.label = "momentum", .points = {}}, batch{.label = "samples a step", .points = {}};
  const train::Interval evaluations(deck.evaluate.every, layout.scale);
  // A plateau counts the evaluations after the warm-up, at most one after each step.
  const auto reductions_before = [&](std::int64_t step) {
    const std::int64_t begin = schedule.warmup_steps(), end = std::max(step - 1, begin);
    return optim::reductions_without_improvement(
        deck.schedule.plateau,
        std::min(end - begin, evaluations.passed(end) - evaluations.passed(begin)));
  };
  for (const std::int64_t step : steps_to_draw(total)) {
    const double x = over_steps ? static_cast<double>(step)
                                : static_cast<double>(layout.scale.samples_after(step)) /
                                      static_cast<double>(layout.scale.samples_per_epoch);
    rates.points.push_back({x, schedule.rate(step, reductions_before(step))});
    if (has_momentum) momentum.points.push_back({x, schedule.momentum(step)});
    if (has_ramp) batch.points.push_back({x, static_cast<double>(layout.scale.samples_of(step))});
  }
  monitor::Plot plot{.title = fmt::format("Schedule of {}", deck.run.name),
                     .subtitle = subtitle_of(deck, schedule, total),
                     .x_label = over_steps ? "steps" : "epochs",
                     .panels = {rates}};
  if (has_momentum) plot.panels.push_back(momentum);
  if (has_ramp) plot.panels.push_back(batch);
  io::replace_file(path, monitor::to_svg(plot));
  return fmt::format("{}: the learning rate{}{} of {}", path, has_momentum ? ", momentum" : "",
                     has_ramp ? ", batch" : "", counted(total, "step", "steps"));
}

}  // namespace trireme::app
