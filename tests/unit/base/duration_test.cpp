// SPDX-License-Identifier: Apache-2.0
//
// Durations: parsing, formatting, and their conversion to steps, with a ramp of the batch too.

#include "trireme/base/duration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/check.hpp"

namespace trireme {
namespace {

using testing::HasSubstr;

using Unit = Duration::Unit;

std::string reason(const std::string& text) {
  std::string why;
  EXPECT_FALSE(parse_duration(text, &why).has_value()) << text;
  return why;
}

TEST(Duration, ReadsEveryFormOfTheContract) {
  EXPECT_EQ(parse_duration("10 epochs"), (Duration{10, Unit::epochs}));
  EXPECT_EQ(parse_duration("1 epoch"), (Duration{1, Unit::epochs}));
  EXPECT_EQ(parse_duration("0.5 epochs"), (Duration{0.5, Unit::epochs}));
  EXPECT_EQ(parse_duration("1000 steps"), (Duration{1000, Unit::steps}));
  EXPECT_EQ(parse_duration("1 step"), (Duration{1, Unit::steps}));
  EXPECT_EQ(parse_duration("50k samples"), (Duration{50000, Unit::samples}));
  EXPECT_EQ(parse_duration("1.1M samples"), (Duration{1100000, Unit::samples}));
  EXPECT_EQ(parse_duration("2B tokens"), (Duration{2e9, Unit::tokens}));
  EXPECT_EQ(parse_duration("30 seconds"), (Duration{30, Unit::seconds}));
  EXPECT_EQ(parse_duration("30 minutes"), (Duration{1800, Unit::seconds}));
  EXPECT_EQ(parse_duration("8 hours"), (Duration{28800, Unit::seconds}));
  EXPECT_EQ(parse_duration("1 day"), (Duration{86400, Unit::seconds}));
  EXPECT_EQ(parse_duration("  10epochs "), (Duration{10, Unit::epochs}));
  EXPECT_EQ(parse_duration("1e6 steps"), (Duration{1e6, Unit::steps}));
  EXPECT_EQ(parse_duration("100Msteps"), (Duration{1e8, Unit::steps}));
  EXPECT_EQ(parse_duration("1kepoch"), (Duration{1000, Unit::epochs}));
}

TEST(Duration, MistakesHaveARemedy) {
  EXPECT_THAT(reason("10 epoks"), HasSubstr("did you mean \"epochs\""));
  EXPECT_THAT(reason("10"), HasSubstr("10 epochs"));
  EXPECT_THAT(reason("10k"), HasSubstr("unit is missing"));
  EXPECT_THAT(reason("ten epochs"), HasSubstr("begins with a number"));
  EXPECT_THAT(reason("5 fortnights"), HasSubstr("minutes, hours"));
  EXPECT_THAT(reason("-5 epochs"), HasSubstr("not be negative"));
  EXPECT_THAT(reason("1.2.3 epochs"), HasSubstr("not a number"));
  EXPECT_THAT(reason(""), HasSubstr("10 epochs"));
  EXPECT_FALSE(reason("10 G steps").empty());
  EXPECT_FALSE(reason("inf epochs").empty());
  EXPECT_FALSE(reason("1e999 epochs").empty());
}

TEST(Duration, WrittenFormIsReadBackToTheSameValue) {
  for (const Unit unit : {Unit::epochs, Unit::steps, Unit::samples, Unit::tokens, Unit::seconds})
    for (const double value :
         {0.0, 0.1, 1.0, 59.5, 60.0, 90.0, 3600.0, 5400.0, 86400.0, 1e6, 2e9, 3.3e17, 1e-7}) {
      const Duration duration{value, unit};
      EXPECT_EQ(parse_duration(to_string(duration)), duration) << to_string(duration);
    }
  EXPECT_EQ(to_string({1, Unit::steps}), "1 step");
  EXPECT_EQ(to_string({90, Unit::seconds}), "90 seconds");
  EXPECT_EQ(to_string({300, Unit::seconds}), "5 minutes");
}

TEST(Duration, StepsAreRoundedUpButNotByBinaryFractions) {
  const StepScale scale{.samples_per_step = 100, .samples_per_epoch = 1000};
  EXPECT_EQ(steps_of({2, Unit::epochs}, scale), 20);
  EXPECT_EQ(steps_of({7, Unit::steps}, scale), 7);
  EXPECT_EQ(steps_of({101, Unit::samples}, scale), 2);
  EXPECT_EQ(steps_of({0, Unit::steps}, scale), 0);
  const StepScale hundred{.samples_per_step = 1, .samples_per_epoch = 100};
  for (int percent = 1; percent <= 1000; ++percent)
    EXPECT_EQ(steps_of({percent / 100.0, Unit::epochs}, hundred), percent);
}

TEST(StepScale, CountsTheSamplesOfARamp) {
  // Steps 1 to 10 take 100 samples, 11 and 12 take 400, later ones 1000.
  const StepScale scale{.samples_per_step = 100,
                        .samples_per_epoch = 1000,
                        .rows = {{1, 0, 100}, {11, 1000, 400}, {13, 1800, 1000}}};
  std::int64_t samples = 0;
  for (std::int64_t step = 1; step <= 20; ++step) {
    const std::int64_t expected = step <= 10 ? 100 : step <= 12 ? 400 : 1000;
    EXPECT_EQ(scale.samples_of(step), expected) << step;
    samples += expected;
    EXPECT_EQ(scale.samples_after(step), samples) << step;
    const auto exact = static_cast<double>(samples);
    EXPECT_EQ(steps_of({exact, Unit::samples}, scale), step) << "exactly at its end";
    EXPECT_EQ(steps_of({exact - 1, Unit::samples}, scale), step) << "rounded up";
    EXPECT_EQ(steps_of({exact + 1, Unit::samples}, scale), step + 1);
    EXPECT_EQ(steps_of({static_cast<double>(step), Unit::steps}, scale), step);
  }
  EXPECT_EQ(scale.samples_after(0), 0);
  EXPECT_EQ(steps_of({1, Unit::epochs}, scale), 10);
  EXPECT_EQ(steps_of({1.4, Unit::epochs}, scale), 11);
  EXPECT_EQ(steps_of({2.8, Unit::epochs}, scale), 13);
}

TEST(Duration, TokensCountOnlyForTokenDatasets) {
  EXPECT_THROW(steps_of({1000, Unit::tokens}, {.samples_per_step = 4, .samples_per_epoch = 8}),
               InputError);
  EXPECT_EQ(steps_of({1000, Unit::tokens},
                     {.samples_per_step = 4, .samples_per_epoch = 8, .tokens_per_sample = 125}),
            2);
}

}  // namespace
}  // namespace trireme
