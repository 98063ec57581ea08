// SPDX-License-Identifier: Apache-2.0
//
// Draws the curves of a page over the steps. page.js keeps these paths, and draws those over the
// other axes from the same numbers.
//
// A curve has up to three paths. Raw: through the least and the largest value of each bucket.
// Smooth: through means over neighboring buckets. Dots: evaluations that are few.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "html.hpp"
#include "page_parts.hpp"
#include "trireme/monitor/svg.hpp"

namespace trireme::report {
namespace {

using monitor::escaped;
using PixelAxis = monitor::Axis;

// Pixels of a chart. page.js has the same.
constexpr double left = 58, right = 436, top = 12, bottom = 212, width = 460, height = 250;
constexpr std::size_t max_dots = 120, max_lonely = 3;

enum class Form : std::uint8_t { raw, smooth, dots };

/// One number of one track of a run.
struct Curve {
  std::size_t run = 0;
  std::size_t track = 0;  ///< its index in the data of the script
  const Track* values = nullptr;
  std::size_t name = 0;
  std::optional<std::size_t> set = {};  ///< of an evaluation: its index among those of all runs
};

/// A chart of a page: a number of rows of kind train, of evaluations or of rows of kind noise.
struct ChartKind {
  const char *title, *unit = "", *train = nullptr, *evaluation = nullptr, *noise = nullptr;
  double scale = 1;
  bool may_be_logarithmic = false, begins_at_zero = false, is_noisy = false,
       only_if_it_varies = false;
};
constexpr double percents = 100, gib = 1.0 / (1 << 30);
constexpr std::array chart_kinds{
    ChartKind{.title = "Loss",
              .train = "loss",
              .evaluation = "loss",
              .may_be_logarithmic = true,
              .is_noisy = true},
    ChartKind{.title = "Top-1 accuracy",
              .unit = "%",
              .train = "top1",
              .evaluation = "top1",
              .scale = percents,
              .is_noisy = true},
    ChartKind{.title = "Perplexity", .evaluation = "perplexity", .may_be_logarithmic = true},
    ChartKind{.title = "RMSE", .evaluation = "rmse", .may_be_logarithmic = true},
    ChartKind{.title = "R2", .evaluation = "r2"},
    ChartKind{.title = "F1", .unit = "%", .evaluation = "f1", .scale = percents},
    ChartKind{.title = "IoU", .unit = "%", .evaluation = "iou", .scale = percents},
    ChartKind{.title = "Accuracy of pixels",
              .unit = "%",
              .train = "accuracy",
              .evaluation = "accuracy",
              .scale = percents,
              .is_noisy = true},
    ChartKind{.title = "Learning rate", .train = "rate"},
    ChartKind{.title = "Momentum", .train = "momentum", .only_if_it_varies = true},
    ChartKind{.title = "Gradient norm",
              .train = "grad_norm",
              .may_be_logarithmic = true,
              .is_noisy = true},
    ChartKind{.title = "Gradient noise scale",
              .unit = "samples",
              .noise = "noise_scale",
              .may_be_logarithmic = true,
              .is_noisy = true},
    ChartKind{.title = "Samples of a step", .train = "batch", .only_if_it_varies = true},
    ChartKind{.title = "Loss scale",
              .train = "loss_scale",
              .may_be_logarithmic = true,
              .only_if_it_varies = true},
    ChartKind{.title = "Speed",
              .unit = "samples/s",
              .train = "samples_per_s",
              .begins_at_zero = true,
              .is_noisy = true},
    ChartKind{.title = "Speed",
              .unit = "tokens/s",
              .train = "tokens_per_s",
              .begins_at_zero = true,
              .is_noisy = true},
    ChartKind{.title = "Model FLOPs of a rank",
              .unit = "TFLOP/s",
              .train = "tflops_per_rank",
              .begins_at_zero = true,
              .is_noisy = true},
    ChartKind{.title = "Model FLOPs utilization",
              .unit = "%",
              .train = "mfu",
              .scale = percents,
              .begins_at_zero = true,
              .is_noisy = true},
    ChartKind{.title = "Device memory in use",
              .unit = "GiB",
              .train = "memory_device_bytes",
              .scale = gib,
              .begins_at_zero = true},
    ChartKind{.title = "Host memory in use",
              .unit = "GiB",
              .train = "memory_host_bytes",
              .scale = gib,
              .begins_at_zero = true},
    ChartKind{.title = "Utilization of the cores, mean of the ranks",
              .unit = "%",
              .train = "cpu_util_mean",
              .begins_at_zero = true,
              .is_noisy = true},
    ChartKind{.title = "Utilization of the GPUs, mean",
              .unit = "%",
              .train = "gpu_util_mean",
              .begins_at_zero = true,
              .is_noisy = true},
    ChartKind{.title = "Temperature of the hottest GPU",
              .unit = "\xC2\xB0"
                      "C",
              .train = "gpu_temp_c_max",
              .is_noisy = true},
    ChartKind{.title = "Power of a GPU, mean",
              .unit = "W",
              .train = "gpu_power_w_mean",
              .begins_at_zero = true,
              .is_noisy = true},
    ChartKind{.title = "Clock of the slowest GPU",
              .unit = "MHz",
              .train = "gpu_clock_mhz_min",
              .begins_at_zero = true,
              .is_noisy = true}};

void add_curve(std::vector<Curve>& curves, Curve curve, const char* name) {
  const auto index = name == nullptr ? std::nullopt : index_of(*curve.values, name);
  if (!index || !curve.values->whole_range(*index).has_values()) return;
  curve.name = *index;
  curves.push_back(std::move(curve));
}

/// Returns the names of the sets that were evaluated in any run.
std::vector<std::string> sets_of(const Report& report) {
  std::set<std::string> sets;
  for (const RunRecord& run : report.runs)
    for (const auto& [set, track] : run.history.evaluations) sets.insert(set);
  return {sets.begin(), sets.end()};
}

std::vector<Curve> curves_of(const Report& report, const ChartKind& kind) {
  const std::vector<std::string> sets = sets_of(report);
  std::vector<Curve> curves;
  for (std::size_t run = 0; run < report.runs.size(); ++run) {
    const History& history = report.runs[run].history;
    std::size_t track = 0;  // in the order of curve_data()
    add_curve(curves, {.run = run, .track = track++, .values = &history.train}, kind.train);
    add_curve(curves, {.run = run, .track = track++, .values = &history.noise}, kind.noise);
    for (const auto& [set, values] : history.evaluations) {
      const auto place = std::find(sets.begin(), sets.end(), set) - sets.begin();
      add_curve(
          curves,
          {.run = run, .track = track, .values = &values, .set = static_cast<std::size_t>(place)},
          kind.evaluation);
      ++track;
    }
  }
  return curves;
}

double step_of(const Track& track, std::size_t bucket) {
  return coordinate(track.place(bucket), Axis::step);
}

std::string path_of(const Curve& curve, Form form, const PixelAxis& x, const PixelAxis& y,
                    double scale) {
  const Track& track = *curve.values;
  const std::vector<double> smoothed =
      form == Form::smooth ? track.smoothed(curve.name) : std::vector<double>();
  std::string path;
  bool draws = false;
  for (std::size_t bucket = 0; bucket < track.buckets(); ++bucket) {
    const Track::Range& range = track.range(bucket, curve.name);
    if (track.begins_part(bucket) || !range.has_values()) draws = false;
    if (!range.has_values()) continue;
    const double at = x.pixel(step_of(track, bucket));
    const auto add = [&](double value) {
      const double pixel = y.pixel(scale * value);
      if (!std::isfinite(at) || !std::isfinite(pixel)) return;
      path += fmt::format("{}{:.1f} {:.1f}", draws && form != Form::dots ? 'L' : 'M', at, pixel);
      if (form == Form::dots) path += "h0";
      draws = true;
    };
    if (form == Form::smooth) {
      add(smoothed[bucket]);
    } else if (form == Form::dots) {
      add(range.mean());
    } else if (range.low == range.high) {
      add(range.low);
    } else {
      const bool falls = bucket % 2 == 1;
      add(falls ? range.high : range.low);
      add(falls ? range.low : range.high);
    }
  }
  return path;
}

std::string path_element(const Curve& curve, Form form, const std::string& classes,
                         const PixelAxis& x, const PixelAxis& y, double scale) {
  constexpr std::array form_names{"raw", "smooth", "dots"};
  return fmt::format(
      "<path class=\"{} {}\" data-run=\"{}\" data-track=\"{}\" data-name=\"{}\" "
      "data-form=\"{}\" d=\"{}\"/>\n",
      color_of_run(curve.run), classes, curve.run, curve.track,
      escaped(curve.values->names()[curve.name]), form_names[static_cast<std::size_t>(form)],
      path_of(curve, form, x, y, scale));
}

/// Returns the class of the dashes and dots of a set.
std::string style_of_set(std::size_t set) { return fmt::format("s{}", set % 4); }

std::string paths(const std::vector<Curve>& curves, const ChartKind& kind, const PixelAxis& x,
                  const PixelAxis& y) {
  std::string text;
  for (const Curve& curve : curves) {
    const auto add = [&](Form form, const std::string& classes) {
      text += path_element(curve, form, classes, x, y, kind.scale);
    };
    if (curve.set)
      add(Form::raw, "raw dashes " + style_of_set(*curve.set));
    else if (kind.is_noisy)
      add(Form::raw, "raw faint");
    else
      add(Form::raw, "raw");
    if (!curve.set && kind.is_noisy) add(Form::smooth, "smooth");
    // A line of few points may have no length.
    if (curve.values->buckets() <= (curve.set ? max_dots : max_lonely))
      add(Form::dots, "dot " + style_of_set(curve.set.value_or(0)));
  }
  return text;
}

std::string marks(const Report& report, const PixelAxis& x) {
  std::string text;
  for (std::size_t run = 0; run < report.runs.size(); ++run) {
    const std::vector<Mark>& all = report.runs[run].history.marks;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double at = x.pixel(coordinate(all[i].place, Axis::step));
      if (!(at >= left && at <= right)) continue;
      text += fmt::format(
          "<line class=\"event{}\" data-run=\"{}\" data-mark=\"{}\" x1=\"{:.1f}\" y1=\"{:.0f}\" "
          "x2=\"{:.1f}\" y2=\"{:.0f}\"><title>{}</title></line>\n",
          report.runs.size() == 1 ? "" : " " + color_of_run(run), run, i, at, top, at, bottom,
          escaped(monitor::shortened(all[i].text, 100)));
    }
  }
  return text;
}

void include(PixelAxis& axis, const Track& track, std::size_t name, double scale) {
  const Track::Range range = track.whole_range(name);
  axis.include(scale * range.low);
  axis.include(scale * range.high);
}

/// Chooses the range of the values. A logarithmic axis is for values that differ by a factor of
/// 100.
PixelAxis value_axis(const std::vector<Curve>& curves, const ChartKind& kind) {
  constexpr double large_factor = 100;
  PixelAxis axis{.first_pixel = bottom, .last_pixel = top};
  for (const Curve& curve : curves) include(axis, *curve.values, curve.name, kind.scale);
  axis.logarithmic = kind.may_be_logarithmic && axis.low > 0 && axis.high > large_factor * axis.low;
  if (!axis.logarithmic) axis.begin_at_zero(0.5);
  if (kind.begins_at_zero && axis.low > 0) axis.low = 0;
  axis.widen();
  return axis;
}

PixelAxis step_axis(const Report& report, const std::vector<Curve>& curves) {
  PixelAxis axis{.first_pixel = left, .last_pixel = right};
  for (const RunRecord& run : report.runs)
    for (const Mark& mark : run.history.marks) axis.include(coordinate(mark.place, Axis::step));
  for (const Curve& curve : curves)
    for (std::size_t bucket = 0; bucket < curve.values->buckets(); ++bucket)
      axis.include(step_of(*curve.values, bucket));
  axis.begin_at_zero(0.1);
  axis.widen();
  return axis;
}

/// Names the sets that a chart shows, each with its dashes.
std::string legend(const Report& report, const std::vector<Curve>& curves) {
  const std::vector<std::string> sets = sets_of(report);
  std::set<std::size_t> shown;
  for (const Curve& curve : curves)
    if (curve.set) shown.insert(*curve.set);
  std::string text;
  for (const std::size_t set : shown)
    text += fmt::format(
        " <svg class=\"chart sample\" viewBox=\"0 0 28 8\"><path class=\"dashes {0}\" d=\"M0 "
        "4H28\"/><path class=\"dot {0}\" d=\"M14 4h0\"/></svg> {1}",
        style_of_set(set), escaped(monitor::shortened(sets[set], 30)));
  return text;
}

std::string chart(const Report& report, const ChartKind& kind) {
  const std::vector<Curve> curves = curves_of(report, kind);
  if (curves.empty()) return "";
  const PixelAxis y = value_axis(curves, kind), x = step_axis(report, curves);
  std::string caption = fmt::format("<b>{}</b>", kind.title);
  if (kind.unit[0] != '\0') caption += fmt::format(", {}", kind.unit);
  caption += legend(report, curves);
  if (y.logarithmic) caption += "; logarithmic";
  return fmt::format(
      "<figure>\n<figcaption>{}</figcaption>\n<svg class=\"chart plot\" viewBox=\"0 0 {:.0f} "
      "{:.0f}\" "
      "role=\"img\" aria-label=\"{}\" data-low=\"{:.17g}\" data-high=\"{:.17g}\" data-log=\"{:d}\" "
      "data-scale=\"{:.17g}\" data-unit=\"{}\">\n{}{}{}</svg>\n</figure>\n",
      caption, width, height, kind.title, y.low, y.high, y.logarithmic, kind.scale, kind.unit,
      grid(x, y, "steps"), marks(report, x), paths(curves, kind, x, y));
}

/// Returns whether a number of the rows of kind train differs between rows or runs.
bool varies(const Report& report, const char* name) {
  PixelAxis range;
  for (const RunRecord& run : report.runs)
    if (const auto index = index_of(run.history.train, name))
      include(range, run.history.train, *index, 1);
  return range.low < range.high;
}

}  // namespace

bool has_chart(std::string_view name) {
  return std::any_of(chart_kinds.begin(), chart_kinds.end(), [&](const ChartKind& kind) {
    return (kind.train && kind.train == name) || (kind.evaluation && kind.evaluation == name) ||
           (kind.noise && kind.noise == name);
  });
}

std::string curves_html(const Report& report) {
  std::string text;
  for (const ChartKind& kind : chart_kinds)
    if (!kind.only_if_it_varies || varies(report, kind.train)) text += chart(report, kind);
  return text.empty() ? "" : "<div class=\"charts\">\n" + text + "</div>\n";
}

}  // namespace trireme::report
