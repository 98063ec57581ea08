// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "trireme/train/run/trainer.hpp"

namespace trireme::train {

/// The rates of a learning-rate range test: `steps` steps from `low` to `high`.
struct RateRange {
  double low = 1e-5, high = 10;
  std::int64_t steps = 200;

  /// Returns the rate of a step, counted from 1: low (high / low)^((step - 1) / (steps - 1)).
  double rate(std::int64_t step) const;
};

/// The mean of values so far, whose weights fall by 0.9 from each value to the one before.
class RunningMean {
 public:
  /// Adds a value and returns the mean.
  double add(double value);

 private:
  double sum_ = 0, weight_ = 0;
};

/// The losses of a learning-rate range test (Smith 2017, "Cyclical Learning Rates for Training
/// Neural Networks", section 3.3), in the order of increasing rates.
class RangeCurve {
 public:
  struct Point {
    double rate = 0, loss = 0;
  };
  void add(const Point& point);
  /// Returns whether the test should stop: the last loss is not finite, or the running mean of the
  /// losses (decay 0.9 a step) is above 4 times its lowest value so far, from the third step on.
  bool has_diverged() const { return has_diverged_; }
  const std::vector<Point>& points() const { return points_; }
  /// Returns the finite losses, smoothed by a running mean (decay 0.9 a step) over increasing and
  /// then over decreasing rates, so that the curve is not moved to higher rates. Losses above the
  /// limit() count as that, so that the end of a test that diverged has little weight.
  std::vector<Point> smoothed() const;
  /// Returns 1.5 times the median loss of the first tenth of the steps, at least of 3. Infinite
  /// without a finite loss.
  double limit() const;
  /// Learning rates for a run, read from the smoothed curve.
  struct Suggestion {
    double steepest = 0;  ///< Where it falls most steeply over the logarithm of the rate.
    /// Where it then stops falling: Smith's highest rate, `max_lr`. None if it falls to the end.
    std::optional<double> end;
  };
  /// Returns the suggestion; none if the smoothed loss never falls by 5 %. The first tenth of the
  /// curve does not count.
  std::optional<Suggestion> suggestion() const;

 private:
  std::vector<Point> points_;
  RunningMean mean_;
  double lowest_ = std::numeric_limits<double>::infinity();
  bool has_diverged_ = false;
};

/// Trains from initial weights with a rate that grows from step to step, and suggests one.
///
/// The deck's run folder is that of the test. Evaluations, checkpoints, the schedule and the rules
/// of [health] are off. Rank 0 writes curve.csv (step, rate, loss), curve.svg and exit.json.
/// Returns done, or stopped_early after a signal. Collective over the world.
ExitCode test_rates(const TrainRequest& request, const RateRange& range,
                    comm::Environment& environment, comm::Engine& engine, Log& log);

/// Returns the deck of the range test of a run: in the folder `range-test` of its run folder,
/// without evaluations and with a constant rate.
deck::Deck range_test_deck(deck::Deck deck);

}  // namespace trireme::train
