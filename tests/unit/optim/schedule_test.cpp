// SPDX-License-Identifier: Apache-2.0
//
// Schedule: warm-up, scaling by the batch and every kind against its formula and the rates of
// PyTorch's scheduler; wrong decks are refused.

#include "trireme/optim/schedule.hpp"

#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/check.hpp"

namespace trireme::optim {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

using Unit = Duration::Unit;
// An epoch is 10 steps.
const StepScale scale{.samples_per_step = 32, .samples_per_epoch = 320};

ScheduleOptions options_of(ScheduleKind kind, double rate = 0.4) {
  ScheduleOptions options;
  options.kind = kind;
  options.rate = rate;
  return options;
}

TEST(Schedule, ConstantIsConstant) {
  const Schedule schedule(options_of(ScheduleKind::constant), 256, 100, scale);
  for (const std::int64_t step : {1, 50, 100, 1000}) EXPECT_EQ(schedule.rate(step), 0.4);
}

TEST(Schedule, ScalesWithTheBatch) {
  ScheduleOptions options = options_of(ScheduleKind::constant);
  options.base_batch = 256;
  EXPECT_EQ(Schedule(options, 1024, 100, scale).peak(), 0.4);
  options.scaling = RateScaling::linear;
  EXPECT_DOUBLE_EQ(Schedule(options, 1024, 100, scale).peak(), 1.6);
  EXPECT_DOUBLE_EQ(Schedule(options, 64, 100, scale).peak(), 0.1);
  options.scaling = RateScaling::sqrt;
  EXPECT_DOUBLE_EQ(Schedule(options, 1024, 100, scale).peak(), 0.8);
}

TEST(Schedule, WarmupIsLinear) {
  for (const ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::cosine}) {
    ScheduleOptions options = options_of(kind);
    options.warmup = Duration{2, Unit::epochs};
    const Schedule schedule(options, 32, 100, scale);
    for (std::int64_t step = 1; step <= 20; ++step)
      EXPECT_DOUBLE_EQ(schedule.rate(step), 0.4 * static_cast<double>(step) / 20);
    EXPECT_EQ(schedule.rate(21), 0.4) << "the first step after it has the peak too";
  }
}

TEST(Schedule, CosineMatchesEdgesAndMiddle) {
  ScheduleOptions options = options_of(ScheduleKind::cosine);
  options.warmup = Duration{20, Unit::steps};
  options.min_ratio = 0.1;
  const Schedule schedule(options, 32, 100, scale);
  EXPECT_EQ(schedule.rate(21), 0.4);
  EXPECT_NEAR(schedule.rate(61), 0.5 * (0.4 + 0.04), 1e-15)
      << "half of the 80 steps after the warm-up";
  EXPECT_NEAR(schedule.rate(101), 0.04, 1e-15);
  EXPECT_EQ(schedule.rate(500), schedule.rate(101)) << "past its end the rate stays constant";
}

TEST(Schedule, CosineMatchesPyTorch) {
  // The recursion of CosineAnnealingLR (torch.optim.lr_scheduler, get_lr), which PyTorch evaluates
  // instead of the closed form.
  const double pi = std::numbers::pi, peak = 0.4, min_rate = 0.04;
  constexpr int length = 80;
  ScheduleOptions options = options_of(ScheduleKind::cosine, peak);
  options.min_ratio = min_rate / peak;
  const Schedule schedule(options, 32, length, scale);
  double rate = peak;
  for (int step = 1; step <= length; ++step) {
    // 80 products, each rounded at 1e-16.
    EXPECT_NEAR(schedule.rate(step), rate, 1e-13) << "step " << step;
    rate = (1 + std::cos(pi * step / length)) / (1 + std::cos(pi * (step - 1) / length)) *
               (rate - min_rate) +
           min_rate;
  }
}

// The rates below are those of the schedulers of torch.optim.lr_scheduler (PyTorch 2.15) for a rate
// of 0.4, printed with all their digits.

/// Expects the rates of the steps 1, 2, ... to 1e-12.
void expect_rates(const Schedule& schedule, const std::vector<double>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(schedule.rate(static_cast<std::int64_t>(i) + 1), expected[i], 1e-12)
        << "step " << i + 1;
}

TEST(Schedule, StepMatchesMultiStepLR) {
  ScheduleOptions options = options_of(ScheduleKind::step);
  options.gamma = 0.2;
  options.milestones = {{3, Unit::steps}, {0.7, Unit::epochs}, {256, Unit::samples}};
  expect_rates(
      Schedule(options, 32, 10, scale),
      {0.4, 0.4, 0.4, 0.08000000000000002, 0.08000000000000002, 0.08000000000000002,
       0.08000000000000002, 0.016000000000000004, 0.003200000000000001, 0.003200000000000001});
}

TEST(Schedule, StepWithAnIntervalHasItsMultiplesAsMilestones) {
  ScheduleOptions with_list = options_of(ScheduleKind::step), with_interval = with_list;
  for (int i = 1; i <= 5; ++i) with_list.milestones.push_back({7.0 * i, Unit::steps});
  with_interval.every = Duration{7, Unit::steps};
  // Milestones count from the start of the run, not from the end of the warm-up.
  with_list.warmup = with_interval.warmup = Duration{5, Unit::steps};
  const Schedule list(with_list, 32, 40, scale), interval(with_interval, 32, 40, scale);
  for (std::int64_t step = 1; step <= 40; ++step) EXPECT_EQ(list.rate(step), interval.rate(step));
  EXPECT_EQ(list.rate(7), 0.4);
  EXPECT_NEAR(list.rate(8), 0.04, 1e-12);
}

TEST(Schedule, ExponentialMatchesExponentialLR) {
  ScheduleOptions options = options_of(ScheduleKind::exponential);
  options.gamma = 0.9;
  options.every = Duration{1, Unit::steps};
  const std::vector<double> rates = {0.4,
                                     0.36000000000000004,
                                     0.32400000000000007,
                                     0.2916000000000001,
                                     0.26244000000000006,
                                     0.23619600000000007,
                                     0.21257640000000008,
                                     0.1913187600000001,
                                     0.1721868840000001,
                                     0.15496819560000008};
  expect_rates(Schedule(options, 32, 10, scale), rates);
  // Within an interval the rate falls continuously; a warm-up moves the decay.
  options.every = Duration{2, Unit::steps};
  options.warmup = Duration{3, Unit::steps};
  const Schedule slow(options, 32, 30, scale);
  for (std::int64_t i = 0; i < 10; ++i)
    EXPECT_NEAR(slow.rate(4 + 2 * i), rates[static_cast<std::size_t>(i)], 1e-12);
  EXPECT_NEAR(slow.rate(5), 0.4 * std::sqrt(0.9), 1e-12);
}

TEST(Schedule, PolynomialMatchesPolynomialLR) {
  ScheduleOptions options = options_of(ScheduleKind::polynomial);
  options.power = 2.5;
  expect_rates(Schedule(options, 32, 8, scale),
               {0.4, 0.2864706436748799, 0.1948557158514987, 0.12352647110032733,
                0.07071067811865477, 0.03444594950788845, 0.0125, 0.0022097086912079614, 0.0, 0.0});
  // TensorFlow's PolynomialDecay: (start - end) * (1 - x)^power + end.
  options.min_ratio = 0.1;
  options.power = 2;
  EXPECT_NEAR(Schedule(options, 32, 8, scale).rate(5), (0.4 - 0.04) * 0.25 + 0.04, 1e-12);
}

TEST(Schedule, RestartsMatchCosineAnnealingWarmRestarts) {
  ScheduleOptions options = options_of(ScheduleKind::restarts);
  options.period = {3, Unit::steps};
  options.period_factor = 2;
  options.min_ratio = 0.05;
  const std::vector<double> rates = {
      0.4,  0.30500000000000005, 0.11500000000000005, 0.4, 0.3745448267190434,  0.30500000000000005,
      0.21, 0.11500000000000005, 0.04545517328095665, 0.4, 0.39352590699492296, 0.3745448267190434};
  expect_rates(Schedule(options, 32, 12, scale), rates);
  // Equal periods far into a run.
  options.period_factor = 1;
  const Schedule equal(options, 32, 12, scale);
  for (std::int64_t i = 0; i < 3; ++i)
    EXPECT_NEAR(equal.rate(3'000'000'000 + 1 + i), rates[static_cast<std::size_t>(i)], 1e-12);
}

TEST(Schedule, RestartsKeepTheirDigitsInLongRuns) {
  ScheduleOptions options = options_of(ScheduleKind::restarts, 1);
  options.period = {7, Unit::steps};
  const auto rate_after = [&](double factor, std::int64_t steps_done) {
    options.period_factor = factor;
    return Schedule(options, 32, 12, scale).rate(steps_done + 1);
  };
  // Periods of whole numbers of steps, added up.
  for (const std::int64_t factor : {2, 3}) {
    std::int64_t begin = 0, length = 7;
    for (int n = 0; n < 25; ++n, begin += length, length *= factor) {
      const auto whole = static_cast<double>(factor);
      EXPECT_EQ(rate_after(whole, begin), 1) << begin;
      EXPECT_NEAR(rate_after(whole, begin + length - 1),
                  (1 + std::cos(std::numbers::pi * (1 - 1 / static_cast<double>(length)))) / 2,
                  1e-12);
    }
  }
  // The sum of 1000 periods that hardly grow.
  constexpr double factor = 1.0000001;
  long double begin = 0, length = 7;
  for (int n = 0; n < 1000; ++n, length *= factor) begin += length;
  const auto steps_done = static_cast<std::int64_t>(begin) + 3;
  const long double part = (static_cast<long double>(steps_done) - begin) / length;
  EXPECT_NEAR(rate_after(factor, steps_done),
              (1 + std::cos(std::numbers::pi * static_cast<double>(part))) / 2, 1e-12);
  // A rate costs the same time at every step.
  EXPECT_GE(rate_after(1 + 1e-12, 1'000'000'000'000), 0);
}

TEST(Schedule, OneCycleMatchesOneCycleLR) {
  ScheduleOptions options = options_of(ScheduleKind::one_cycle);
  options.start_ratio = 0.04;
  options.min_ratio = 4e-6;
  const Schedule schedule(options, 32, 12, scale);
  expect_rates(schedule,
               {0.016000000000000014, 0.1399158616878332, 0.3517140636488515, 0.39776617418036475,
                0.3732051879365647, 0.3246982615799052, 0.25895159907804133, 0.18505484106679002,
                0.11322439928347969, 0.05339101207553224, 0.01382679497015809, 1.6e-06, 1.6e-06});
  const std::vector<double> momentum = {0.95,
                                        0.9177302443521267,
                                        0.8625744625914449,
                                        0.8505584586887436,
                                        0.856698729810778,
                                        0.8688255099070633,
                                        0.8852622412794547,
                                        0.9037365046793212,
                                        0.9216941869558779,
                                        0.9366525935914912,
                                        0.9465436874322102,
                                        0.95};
  for (std::size_t i = 0; i < momentum.size(); ++i)
    EXPECT_NEAR(schedule.momentum(static_cast<std::int64_t>(i) + 1), momentum[i], 1e-12);
  // A schedule of one step: only its end.
  EXPECT_NEAR(Schedule(options, 32, 1, scale).rate(1), 1.6e-6, 1e-12);
}

TEST(Schedule, PlateauMatchesReduceLROnPlateau) {
  ScheduleOptions options = options_of(ScheduleKind::plateau);
  options.min_ratio = 0.03 / 0.4;
  options.plateau = {
      .metric = "loss", .threshold = 1e-3, .factor = 0.5, .patience = 2, .cooldown = 1};
  const auto expect = [&](const std::vector<double>& values, const std::vector<double>& rates) {
    const Schedule schedule(options, 32, 0, scale);
    PlateauState state;
    for (std::size_t i = 0; i < values.size(); ++i) {
      count_evaluation(options.plateau, values[i], state);
      EXPECT_NEAR(schedule.rate(100, state.reductions), rates[i], 1e-12) << "evaluation " << i;
    }
    EXPECT_EQ(state.metric, options.plateau.metric);
  };
  expect({1.0, 0.9, 0.9, 0.89995, 0.95, 0.91, 0.9, 0.5, 0.6, 0.6, 0.6,
          0.6, 0.6, 0.6, 0.6,     0.6,  0.6,  0.6, 0.6, 0.6, 0.6, 0.6},
         {0.4, 0.4, 0.4, 0.4,  0.2,  0.2,  0.2,  0.2,  0.2,  0.2,  0.1,
          0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.03, 0.03, 0.03, 0.03});
  options.min_ratio = 0;
  options.plateau = {.metric = "top1", .threshold = 1e-2, .factor = 0.1, .patience = 1};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect({0.1, 0.2, 0.2001, 0.2001, 0.2, 0.3, 0.1, nan, 0.3, 0.31, 0.3, 0.3, 0.3},
         {0.4, 0.4, 0.4, 0.04, 0.04, 0.04, 0.04, 0.004, 0.004, 0.004, 0.004, 0.0004, 0.0004});
  // Unlike PyTorch: no value below a negative best is an improvement.
  options.plateau.metric = "r2";
  expect({-2, -2.01, -2.015, -1, -1.005, -0.995, 0.5}, {0.4, 0.4, 0.04, 0.04, 0.04, 0.004, 0.004});
}

TEST(Schedule, EvaluationsWithoutImprovementReduceTheRateRegularly) {
  for (const std::int64_t patience : {0, 1, 4})
    for (const std::int64_t cooldown : {0, 1, 3}) {
      const PlateauOptions options{.patience = patience, .cooldown = cooldown};
      PlateauState state;
      EXPECT_EQ(reductions_without_improvement(options, 0), 0);
      for (std::int64_t evaluations = 1; evaluations < 40; ++evaluations) {
        count_evaluation(options, 1, state);
        EXPECT_EQ(reductions_without_improvement(options, evaluations), state.reductions)
            << patience << " " << cooldown << " " << evaluations;
      }
      EXPECT_GT(state.reductions, 4);
    }
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(reductions_without_improvement({.patience = most}, most), 0);
  EXPECT_EQ(reductions_without_improvement({.patience = 1, .cooldown = most}, most), 1);
}

TEST(Schedule, WarmupStartsAtItsRatio) {
  ScheduleOptions options = options_of(ScheduleKind::polynomial);
  options.warmup = Duration{4, Unit::steps};
  options.start_ratio = 0.25;
  const Schedule schedule(options, 32, 12, scale);
  for (std::int64_t step = 1; step <= 4; ++step)
    EXPECT_NEAR(schedule.rate(step), 0.4 * (0.25 + 0.75 * static_cast<double>(step) / 4), 1e-12);
  EXPECT_EQ(schedule.rate(5), 0.4);
}

TEST(Schedule, MilestonesMustIncreaseAfterTheWarmup) {
  ScheduleOptions options = options_of(ScheduleKind::step);
  const auto error_of = [&] {
    try {
      const Schedule schedule(options, 32, 100, scale);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  options.warmup = Duration{2, Unit::epochs};
  options.milestones = {{20, Unit::steps}};
  EXPECT_THAT(
      error_of(),
      StartsWith("schedule.milestones: \"20 steps\" is step 20, within the warm-up of 20 steps"));
  options.milestones = {{3, Unit::epochs}, {960, Unit::samples}};
  EXPECT_THAT(error_of(), StartsWith("schedule.milestones: \"960 samples\" is step 30, not after "
                                     "the milestone before it, at step "
                                     "30"));
  options.milestones = {{3, Unit::epochs}, {961, Unit::samples}};
  EXPECT_EQ(error_of(), "");
  options.milestones.clear();
  options.every = Duration{20, Unit::steps};
  EXPECT_THAT(error_of(), StartsWith("schedule.every = \"20 steps\" is within the warm-up"));
}

TEST(Schedule, RateChangesSmoothly) {
  ScheduleOptions options = options_of(ScheduleKind::cosine);
  options.warmup = Duration{1.5, Unit::epochs};
  const Schedule schedule(options, 32, 200, scale);
  // Steepest slopes: peak / W in the warm-up, peak * pi / 2 / (T - W) in the middle of the cosine.
  const double max_change = 0.4 / 15 * 1.0001;
  for (std::int64_t step = 1; step < 210; ++step) {
    EXPECT_GE(schedule.rate(step), 0.0);
    EXPECT_LE(std::abs(schedule.rate(step + 1) - schedule.rate(step)), max_change)
        << "step " << step;
  }
}

TEST(Schedule, WarmupMustFitTheRun) {
  ScheduleOptions options = options_of(ScheduleKind::cosine);
  options.warmup = Duration{10, Unit::epochs};
  EXPECT_EQ(Schedule(options, 32, 100, scale).rate(100), 0.4);
  options.warmup = Duration{11, Unit::epochs};
  try {
    const Schedule schedule(options, 32, 100, scale);
    FAIL() << "a warm-up of 110 steps was accepted in a run of 100";
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_THAT(message, HasSubstr("schedule.warmup = \"11 epochs\" = 110 steps is longer than the "
                                   "schedule of 100 steps"));
  }
  options.warmup = Duration{5, Unit::seconds};
  EXPECT_THROW(Schedule(options, 32, 100, scale), InputError);
}

/// A ramp of 40 steps of 32 samples, 30 of 64 and 10 of 128: 4480 samples.
const StepScale ramp_scale{.samples_per_step = 32,
                           .samples_per_epoch = 320,
                           .rows = {{1, 0, 32}, {41, 1280, 64}, {71, 3200, 128}}};

TEST(Schedule, HasTheSameCourseOverTheDataWithARamp) {
  // The rate of a step of a ramp is that of the step which begins at the same sample and is as long
  // as the ramp's shortest, in a run whose steps all have 32 samples.
  for (const ScheduleKind kind :
       {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::polynomial,
        ScheduleKind::restarts, ScheduleKind::step, ScheduleKind::exponential}) {
    ScheduleOptions options = options_of(kind);
    options.min_ratio = kind == ScheduleKind::step || kind == ScheduleKind::exponential ? 0 : 0.1;
    options.warmup = Duration{2, Unit::epochs};  // 20 steps of 32
    options.gamma = 0.5;
    options.power = 2;
    options.period = {640, Unit::samples};
    options.period_factor = 2;
    if (kind == ScheduleKind::step)
      options.milestones = {{2560, Unit::samples}, {10, Unit::epochs}};
    if (kind == ScheduleKind::exponential) options.every = Duration{1, Unit::epochs};
    const Schedule plain(options, 32, 140, scale), ramp(options, 32, 80, ramp_scale);
    for (std::int64_t step = 1; step <= 80; ++step) {
      const std::int64_t same = ramp_scale.samples_after(step - 1) / 32 + 1;
      EXPECT_NEAR(ramp.rate(step), plain.rate(same), 1e-12)
          << static_cast<int>(kind) << " " << step;
    }
  }
}

TEST(Schedule, WarmsUpBySamplesAndScalesByTheBatchOfTheStep) {
  ScheduleOptions options = options_of(ScheduleKind::constant);
  options.scaling = RateScaling::linear;
  options.base_batch = 32;
  options.warmup = Duration{60, Unit::steps};  // 1280 + 20 * 64 = 2560 samples
  const Schedule schedule(options, 32, 80, ramp_scale);
  EXPECT_DOUBLE_EQ(schedule.rate(40), 0.4 * 1280 / 2560);
  EXPECT_DOUBLE_EQ(schedule.rate(41), 0.8 * 1344 / 2560);
  EXPECT_DOUBLE_EQ(schedule.rate(60), 0.8);
  EXPECT_DOUBLE_EQ(schedule.rate(70), 0.8);
  EXPECT_DOUBLE_EQ(schedule.rate(71), 1.6);
  EXPECT_DOUBLE_EQ(schedule.peak(), 1.6);
}

TEST(Schedule, OneCycleOfARampReachesItsPeakAndItsEnd) {
  ScheduleOptions options = options_of(ScheduleKind::one_cycle);
  options.start_ratio = 0.04;
  options.min_ratio = 0.001;
  options.peak_at = 0.5;  // sample 2240 - 128 is the peak: step 41 + (2112 - 1280) / 64 = 54
  const Schedule schedule(options, 32, 80, ramp_scale);
  EXPECT_DOUBLE_EQ(schedule.rate(1), 0.4 * 0.04);
  EXPECT_DOUBLE_EQ(schedule.rate(54), 0.4);
  EXPECT_LT(schedule.rate(53), 0.4);
  EXPECT_LT(schedule.rate(55), 0.4);
  EXPECT_NEAR(schedule.rate(80), 0.4 * 0.001, 1e-15);
}

TEST(Schedule, RefusesIntervalsOfStepsWithARamp) {
  ScheduleOptions options = options_of(ScheduleKind::exponential);
  options.gamma = 0.9;
  options.every = Duration{10, Unit::steps};
  try {
    const Schedule schedule(options, 32, 80, ramp_scale);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()),
              "schedule.every = \"10 steps\" has no fixed number of samples, because batch.ramp "
              "changes those of a step; use epochs or samples");
  }
}

}  // namespace
}  // namespace trireme::optim
