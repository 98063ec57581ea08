// SPDX-License-Identifier: Apache-2.0
#include "trireme/report/track.hpp"

#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace trireme::report {
namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

void add(Track& track, double step, double loss, double rate = none) {
  track.add({step, none, none, none}, std::array{loss, rate});
}

Track track(std::size_t buckets = 8) { return Track({"loss", "rate"}, buckets); }

TEST(Track, FewRowsAreKeptAsTheyAre) {
  Track loss = track();
  for (int step = 1; step <= 8; ++step) add(loss, step, 10 - step);
  ASSERT_EQ(loss.buckets(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(loss.place(i)[0], static_cast<double>(i + 1));
    EXPECT_EQ(loss.range(i, 0).low, loss.range(i, 0).high);
    EXPECT_EQ(loss.range(i, 0).mean(), 9 - static_cast<double>(i));
    EXPECT_FALSE(loss.range(i, 1).has_values());
  }
}

TEST(Track, NoExtremeAndNoRowIsLost) {
  for (const int spike : {1, 2, 777, 1000}) {
    Track loss = track();
    double sum = 0;
    for (int step = 1; step <= 1000; ++step) {
      const double value = step == spike ? 99 : 1.0 / step;
      sum += value;
      add(loss, step, value);
    }
    EXPECT_LE(loss.buckets(), 8u);
    const Track::Range whole = loss.whole_range(0);
    EXPECT_EQ(whole.high, 99);
    EXPECT_EQ(whole.low, spike == 1000 ? 1.0 / 999 : 1.0 / 1000);
    EXPECT_EQ(whole.count, 1000);
    EXPECT_NEAR(whole.sum, sum, 1e-9);
    EXPECT_EQ(loss.last_place()[0], 1000);
  }
}

TEST(Track, ValuesThatAreNotFiniteAreNone) {
  Track loss = track();
  add(loss, 1, none, 0.1);
  add(loss, 2, std::numeric_limits<double>::infinity(), 0.2);
  EXPECT_FALSE(loss.whole_range(0).has_values());
  EXPECT_EQ(loss.whole_range(1).high, 0.2);
}

TEST(Track, AStepBackBeginsAnotherPart) {
  Track loss = track();
  for (const double step : {1, 2, 3, 2, 3, 4}) add(loss, step, 1);
  for (std::size_t i = 0; i < loss.buckets(); ++i) EXPECT_EQ(loss.begins_part(i), i == 3) << i;
}

TEST(Track, PartsRemainWhenBucketsAreJoined) {
  Track loss = track(4);
  for (const double step : {1, 2, 3, 4, 2, 3, 4, 5}) add(loss, step, step);
  // (1 2) (3 4) (2 3) (4 5)
  ASSERT_EQ(loss.buckets(), 4u);
  EXPECT_TRUE(loss.begins_part(2));
  EXPECT_EQ(loss.place(0)[0], 1.5);
  EXPECT_EQ(loss.place(2)[0], 2.5);
  EXPECT_FALSE(loss.begins_part(1));
  EXPECT_FALSE(loss.begins_part(3));
}

TEST(Track, SmoothingKeepsAConstantAndALine) {
  Track loss = track(512);
  for (int step = 1; step <= 400; ++step) add(loss, step, 3, 2.0 * step);
  const auto constant = loss.smoothed(0), line = loss.smoothed(1);
  for (std::size_t i = 0; i < 400; ++i) {
    EXPECT_NEAR(constant[i], 3, 1e-12);
    EXPECT_NEAR(line[i], 2.0 * static_cast<double>(i + 1), 1e-9);
  }
}

TEST(Track, SmoothingTakesNoiseAwayButMixesNoParts) {
  Track loss = track(512);
  for (int step = 1; step <= 200; ++step) add(loss, step, step % 2 == 0 ? 1 : -1);
  for (int step = 100; step <= 300; ++step) add(loss, step, 10);
  const auto smooth = loss.smoothed(0);
  EXPECT_LT(std::abs(smooth[100]), 0.2);
  EXPECT_LT(smooth[199], 2);
  EXPECT_EQ(smooth[200], 10);
}

}  // namespace
}  // namespace trireme::report
