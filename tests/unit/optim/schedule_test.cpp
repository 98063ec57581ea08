// Schedule: warm-up, cosine and scaling by the batch against their formulas and PyTorch's
// scheduler; wrong decks are refused.

#include "trireme/optim/schedule.hpp"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "trireme/base/check.hpp"

namespace trireme::optim {
namespace {

using Unit = Duration::Unit;
// An epoch is 10 steps.
constexpr StepScale scale{.samples_per_step = 32, .samples_per_epoch = 320};

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
    EXPECT_NE(message.find("schedule.warmup = \"11 epochs\" is 110 steps"), std::string::npos)
        << message;
    EXPECT_NE(message.find("\"100 steps\" or less"), std::string::npos) << message;
  }
  options.warmup = Duration{5, Unit::seconds};
  EXPECT_THROW(Schedule(options, 32, 100, scale), InputError);
}

}  // namespace
}  // namespace trireme::optim
