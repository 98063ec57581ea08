// SPDX-License-Identifier: Apache-2.0
//
// `trireme train DECK --range-test LOW:HIGH:STEPS`: a short training in which the rate grows from
// step to step, and the rate that its losses suggest.
//
// Order: prepare the run as train() does, then begin and end one step after the other. Rank 0 keeps
// the curve; all ranks have the same losses, so all of them stop at the same step.
#include "trireme/train/run/range_test.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "restore.hpp"
#include "stop_request.hpp"
#include "train/records/start_record.hpp"
#include "train/supervision/report_signal.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/io/file.hpp"
#include "trireme/monitor/plot.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/train/run/held_run_folder.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/run_clock.hpp"
#include "trireme/train/step/step_pipeline.hpp"

namespace trireme::train {
namespace {

constexpr double mean_decay = 0.9;  // of the running means, a step
constexpr double divergence = 4;    // times the lowest running mean
// A smaller fall of the smoothed loss, as a part of its first value, is noise.
constexpr double least_fall = 0.05;
// Larger losses count as this many times the median of the first ones, and are drawn there. The
// last losses of a test that diverged may be a hundred times as large, and would hide the fall
// before them. A single first loss may be far below the others.
constexpr double highest_counted = 1.5;
constexpr std::size_t fewest_losses = 3;  // of a mean or a median that others are compared with

constexpr const char *table_name = "curve.csv", *plot_name = "curve.svg";
constexpr std::array curve_names = {table_name, plot_name};

/// Returns where the smoothed loss stops falling: "stops falling at 0.2".
std::string describe_end(const RangeCurve::Suggestion& suggestion, double scale) {
  return suggestion.end ? fmt::format("stops falling at {:.2g}", *suggestion.end / scale)
                        : "still falls at the highest rate";
}

/// Returns the running means of the values.
std::vector<double> running_means(const std::vector<double>& values) {
  std::vector<double> means;
  RunningMean mean;
  for (const double value : values) means.push_back(mean.add(value));
  return means;
}

void write_curve(const Run& run, const RangeCurve& curve, double scale) {
  std::string table = "step,rate,loss\n";
  std::int64_t step = 0;
  monitor::PlotPanel panel{.label = "loss", .points = {}};
  for (const RangeCurve::Point& point : curve.points()) {
    table += fmt::format("{},{},{}\n", ++step, point.rate, point.loss);
    panel.points.push_back({point.rate, point.loss});
  }
  for (const RangeCurve::Point& point : curve.smoothed())
    panel.emphasis.push_back({point.rate, point.loss});
  if (!panel.points.empty()) panel.max_y = curve.limit();
  const std::optional<RangeCurve::Suggestion> suggestion = curve.suggestion();
  monitor::Plot plot{
      .title = fmt::format("Learning-rate range test of {}", run.deck.run.name),
      .subtitle = suggestion
                      ? fmt::format("suggested: schedule.rate = {:.2g}, where the smoothed "
                                    "loss falls most steeply; it {}",
                                    suggestion->steepest / scale, describe_end(*suggestion, scale))
                      : "the smoothed loss never fell by 5 %",
      .x_label = "learning rate of a step",
      .panels = {panel},
      .log_x = true,
      .mark = suggestion ? std::optional(suggestion->steepest) : std::nullopt,
      .mark_label = "suggested"};
  io::replace_file(fmt::format("{}/{}", run.deck.run.folder, table_name), table);
  io::replace_file(fmt::format("{}/{}", run.deck.run.folder, plot_name), monitor::to_svg(plot));
}

/// Logs what the curve says, and how to go on.
void log_result(const Run& run, const RangeCurve& curve, double scale, Log& log) {
  const std::string& folder = run.deck.run.folder;
  if (curve.has_diverged())
    log.info("the loss diverged at step {}, with a rate of {:.3g}", curve.points().size(),
             curve.points().back().rate);
  if (const std::optional<RangeCurve::Suggestion> suggestion = curve.suggestion()) {
    log.info(
        "suggested: schedule.rate = {:.2g}{}, where the smoothed loss falls most steeply; it {}, "
        "so try {}, too; look at {}/curve.svg",
        suggestion->steepest / scale,
        scale == 1 ? "" : fmt::format(" (scaled to {:.2g})", suggestion->steepest),
        describe_end(*suggestion, scale), suggestion->end ? "rates in between" : "higher rates",
        folder);
  } else {
    log.warn(
        "the smoothed loss never fell by 5 %, so no rate is suggested; try {}; look at "
        "{}/curve.svg",
        curve.has_diverged() ? "lower rates" : "higher rates or more steps", folder);
  }
}

/// Throws InputError if a training uses the folder of the test, or a folder has the name of a file
/// that the test writes at its end. Collective.
void validate_folder(const comm::Communicator& world, const std::string& folder) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    const std::string checkpoints = monitor::RunFolder(folder).checkpoints();
    validate(!checkpoint::has_checkpoints(checkpoints),
             "{}: holds checkpoints of a training, but --range-test works in this "
             "folder and starts from initial weights; move them away, or set another run.folder",
             checkpoints);
    std::error_code ignored;
    for (const char* name : curve_names)
      validate(!std::filesystem::is_directory(std::filesystem::path(folder) / name, ignored),
               "{}/{}: is a folder, but --range-test writes a file of this name; move it away, or "
               "set another run.folder",
               folder, name);
  });
}

/// Removes the curve of an earlier test, so that it is not taken for that of this one. Collective.
void remove_curve(const comm::Communicator& world, const std::string& folder) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    for (const char* name : curve_names) {
      std::error_code error;
      std::filesystem::remove(std::filesystem::path(folder) / name, error);
      validate(
          !error,
          "{}/{}: the curve of an earlier test cannot be removed: {}; remove it, or set another "
          "run.folder",
          folder, name, error.message());
    }
  });
}

/// Trains with growing rates until the loss diverges, all steps are done, or a stop is asked for.
/// Returns who asked for it; "" if nobody did. Collective.
std::string measure_curve(Run& run, const RestoredRun& restored, const RateRange& range,
                          const RunClock& clock, RangeCurve& curve, Log& log) {
  WeightUpdate& update = run.replica->weight_update();
  StepPipeline pipeline(*run.replica, *run.train_loader);
  run.train_loader->start(restored.state.cursor);
  update.anchor_replicas();
  StopFile stop_file(run.deck.run.folder);
  double longest_step = 0;
  bool time_is_up = false, stop = false, unreadable = false;
  for (std::int64_t step = 1; step <= range.steps && !curve.has_diverged() && !stop && !unreadable;
       ++step) {
    const double rate = range.rate(step);
    // Only world rank 0 looks at clocks and files.
    if (run.mesh.world.rank() == 0) time_is_up = clock.must_stop(longest_step, 0);
    const bool asks =
        stop_signal() != 0 || time_is_up || (run.mesh.world.rank() == 0 && stop_file.exists());
    pipeline.begin({.rates = {.learning_rate = rate},
                    .stop_requests = asks ? flag_stop : flag_none,
                    .averages = update.is_periodic() && step % run.deck.parallel.sync_every == 0,
                    .loss_limit = std::numeric_limits<double>::infinity()});
    const StepResult result = pipeline.end();
    longest_step = std::max(longest_step, result.times.total);
    unreadable = (result.stop_requests & flag_unreadable) != 0;
    stop = (result.stop_requests & flag_stop) != 0;
    if (!unreadable) curve.add({rate, result.loss});
    if (step % std::max<std::int64_t>(1, range.steps / 10) == 0)
      log.info("step {} of {}: rate {:.3g}, loss {:.4g}", step, range.steps, rate, result.loss);
  }
  update.complete_pending();
  run.engine.quiesce();
  if (unreadable)
    comm::together(run.mesh.world, [&] {
      if (pipeline.reader_error()) std::rethrow_exception(pipeline.reader_error());
    });
  return stop ? stop_reason(stop_file, time_is_up, clock.source()) : "";
}

}  // namespace

double RateRange::rate(std::int64_t step) const {
  const double part = static_cast<double>(step - 1) / static_cast<double>(steps - 1);
  return low * std::pow(high / low, part);
}

double RunningMean::add(double value) {
  sum_ = mean_decay * sum_ + (1 - mean_decay) * value;
  weight_ = mean_decay * weight_ + (1 - mean_decay);
  return sum_ / weight_;
}

void RangeCurve::add(const Point& point) {
  points_.push_back(point);
  if (!std::isfinite(point.loss)) {
    has_diverged_ = true;
    return;
  }
  const double mean = mean_.add(point.loss);
  if (points_.size() < fewest_losses) return;
  lowest_ = std::min(lowest_, mean);
  has_diverged_ = mean > divergence * lowest_;
}

double RangeCurve::limit() const {
  const std::size_t tenth = std::min(points_.size(), std::max(fewest_losses, points_.size() / 10));
  std::vector<double> first;
  for (std::size_t i = 0; i < tenth; ++i)
    if (std::isfinite(points_[i].loss)) first.push_back(points_[i].loss);
  if (first.empty()) return std::numeric_limits<double>::infinity();
  const auto middle = std::next(first.begin(), std::ssize(first) / 2);
  std::nth_element(first.begin(), middle, first.end());
  return highest_counted * *middle;
}

std::vector<RangeCurve::Point> RangeCurve::smoothed() const {
  const double highest = limit();
  std::vector<Point> finite;
  std::vector<double> losses;
  for (const Point& point : points_) {
    if (!std::isfinite(point.loss)) break;
    finite.push_back(point);
    losses.push_back(std::min(point.loss, highest));
  }
  losses = running_means(losses);
  std::reverse(losses.begin(), losses.end());
  losses = running_means(losses);
  std::reverse(losses.begin(), losses.end());
  for (std::size_t i = 0; i < finite.size(); ++i) finite[i].loss = losses[i];
  return finite;
}

std::optional<RangeCurve::Suggestion> RangeCurve::suggestion() const {
  const std::vector<Point> curve = smoothed();
  const auto lower = [](const Point& a, const Point& b) { return a.loss < b.loss; };
  // The means of the first steps are of few losses: their noise would count as a steep fall.
  const std::size_t begin = curve.size() / 10;
  if (curve.empty()) return std::nullopt;
  const auto lowest = std::min_element(std::next(curve.begin(), static_cast<std::ptrdiff_t>(begin)),
                                       curve.end(), lower);
  if (lowest->loss > (1 - least_fall) * curve[begin].loss) return std::nullopt;
  // Rates are evenly spaced on a logarithmic axis, so differences are slopes there.
  std::size_t place = begin;
  double steepest = 0;
  for (std::size_t i = std::max<std::size_t>(begin, 1); i + 1 < curve.size(); ++i) {
    const double slope = curve[i + 1].loss - curve[i - 1].loss;
    if (slope >= steepest) continue;
    steepest = slope;
    place = i;
  }
  std::size_t end = place;
  while (end + 1 < curve.size() && curve[end + 1].loss <= curve[end].loss) ++end;
  Suggestion suggestion{.steepest = curve[place].rate, .end = {}};
  if (end + 1 < curve.size()) suggestion.end = curve[end].rate;
  return suggestion;
}

deck::Deck range_test_deck(deck::Deck deck) {
  deck.run.folder += "/range-test";
  deck.data.validation = deck.data.test = deck.checkpoint.best = "";
  deck.optimizer.ema = 0;
  deck.evaluate.subset = 0;
  deck.schedule.kind = optim::ScheduleKind::constant;
  deck.schedule.warmup.reset();
  return deck;
}

ExitCode test_rates(const TrainRequest& request, const RateRange& range,
                    comm::Environment& environment, comm::Engine& engine, Log& log) {
  install_stop_signals();
  install_report_signal();
  const comm::Communicator& world = environment.world();
  const RunClock clock = world.rank() == 0 ? RunClock(request.deck.run) : RunClock();
  checkpoint::ExitRecord record{.start = utc_timestamp(), .reason = {}};
  validate_folder(world, request.deck.run.folder);
  HeldRunFolder folder = acquire_run_folder(request.deck, environment, log);
  try {
    // 1. Prepare the run as for training. Now that no other job uses the folder, check it again.
    validate_folder(world, request.deck.run.folder);
    remove_curve(world, request.deck.run.folder);
    Run run(request.deck, environment, engine, log);
    const RestoredRun restored = restore(run, request.restart, std::nullopt, log);
    folder.keep();
    record_start(run, request, restored, gather_hosts(environment), environment, log);
    log.info("range test: {} of {} with rates from {:.3g} to {:.3g}",
             counted(range.steps, "step", "steps"), counted(run.layout.global, "sample", "samples"),
             range.low, range.high);
    // 2. Train with growing rates until the loss diverges.
    RangeCurve curve;
    const std::string stopped = measure_curve(run, restored, range, clock, curve, log);
    record.step = std::ssize(curve.points());
    record.code = stopped.empty() ? ExitCode::done : ExitCode::stopped_early;
    record.reason = !stopped.empty()       ? stopped
                    : curve.has_diverged() ? "the loss diverged"
                                           : "all steps of the range test are done";
    if (!stopped.empty())
      log.info("stopped at step {} ({}); the curve so far is written", record.step, stopped);
    // 3. Write the curve and what it suggests.
    comm::together(world, [&] {
      if (world.rank() != 0) return;
      if (!folder.lease.confirm()) folder.lease.check();
      const double scale = optim::rate_scale(run.deck.schedule.scaling, run.deck.batch.global,
                                             run.deck.schedule.base_batch);
      write_curve(run, curve, scale);
      log_result(run, curve, scale, log);
      checkpoint::write_exit_record(run.deck.run.folder, record);
    });
    return record.code;
  } catch (const std::exception& caught) {
    const Error error = to_error(caught);
    record.code = error.code();
    record.reason = error.what();
    const bool all_know = world.size() == 1 || error.thrown_on_all_ranks();
    if (folder.is_new && folder.is_starting && error.code() == ExitCode::wrong_input && all_know) {
      release_run_folder(folder, monitor::RunFolder(request.deck.run.folder));
    } else if (world.rank() == 0 && folder.lease.confirm()) {
      folder.new_folders.keep();
      checkpoint::write_exit_record(request.deck.run.folder, record);
    }
    if (folder.is_starting || all_know) throw;
    // The other ranks wait in a collective call.
    log.error("rank {} on {}: {}", world.rank(), environment.host(), error.what());
    log.flush();
    environment.abort(error.code());
  }
}

}  // namespace trireme::train
