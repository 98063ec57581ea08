// SPDX-License-Identifier: Apache-2.0
//
// The order of samples in an epoch, and the division of epochs into steps.
#include "trireme/data/sampler.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace trireme::data {
namespace {

std::vector<std::int64_t> epoch_of(const SampleOrder& order, std::int64_t epoch) {
  std::vector<std::int64_t> samples;
  for (std::int64_t position = 0; position < order.samples; ++position)
    samples.push_back(order.sample_at(epoch, position));
  return samples;
}

TEST(SampleOrder, AnEpochHoldsEachSampleOnceWhateverTheSizes) {
  for (const Shuffle shuffle : {Shuffle::full, Shuffle::blocks, Shuffle::none}) {
    for (const std::int64_t samples : {1, 2, 7, 64, 100, 1009}) {
      for (const std::int64_t block : {1, 8, 5000}) {
        for (const std::int64_t window : {1, 33, 5000}) {
          const SampleOrder order{
              .seed = 3, .samples = samples, .shuffle = shuffle, .block = block, .window = window};
          for (const std::int64_t epoch : {0, 1, 1000}) {
            std::vector<std::int64_t> found = epoch_of(order, epoch);
            std::sort(found.begin(), found.end());
            std::vector<std::int64_t> all(static_cast<std::size_t>(samples));
            std::iota(all.begin(), all.end(), 0);
            ASSERT_EQ(found, all) << samples << " " << block << " " << window << " " << epoch;
          }
        }
      }
    }
  }
}

TEST(SampleOrder, ChangesWithEpochAndSeedAndNothingElse) {
  for (const Shuffle shuffle : {Shuffle::full, Shuffle::blocks}) {
    const SampleOrder order{
        .seed = 1, .samples = 500, .shuffle = shuffle, .block = 16, .window = 64};
    SampleOrder other = order;
    other.seed = 2;
    EXPECT_EQ(epoch_of(order, 4), epoch_of(order, 4));
    EXPECT_NE(epoch_of(order, 0), epoch_of(order, 1));
    EXPECT_NE(epoch_of(order, 0), epoch_of(other, 0));
  }
  const SampleOrder plain{.seed = 1, .samples = 5, .shuffle = Shuffle::none};
  EXPECT_EQ(epoch_of(plain, 9), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST(SampleOrder, BlocksReadRunsOfNeighbours) {
  // A window of w positions takes its samples from about w / block blocks, plus those cut at its
  // ends, plus one where the rotation wraps.
  const SampleOrder order{
      .seed = 5, .samples = 10'000, .shuffle = Shuffle::blocks, .block = 100, .window = 1000};
  for (std::int64_t window = 0; window < 10; ++window) {
    std::set<std::int64_t> samples;
    for (std::int64_t i = 0; i < 1000; ++i) samples.insert(order.sample_at(0, window * 1000 + i));
    std::int64_t runs = 0, last = -2;
    for (const std::int64_t sample : samples) {
      runs += sample != last + 1;
      last = sample;
    }
    EXPECT_LE(runs, 1000 / 100 + 1);
  }
}

TEST(SampleOrder, BlocksLeaveNoSampleAlwaysAtTheEnd) {
  const SampleOrder order{
      .seed = 5, .samples = 1009, .shuffle = Shuffle::blocks, .block = 100, .window = 100};
  std::set<std::int64_t> last;
  for (std::int64_t epoch = 0; epoch < 50; ++epoch) last.insert(order.sample_at(epoch, 1008));
  // 50 draws from 1009 samples: about one duplicate is expected.
  EXPECT_GT(last.size(), 40u);
}

TEST(EpochBatching, DroppedRestsBeginTheNextEpoch) {
  const EpochBatching cutter{.samples = 10, .global_batch = 4, .drop_last = true};
  EXPECT_EQ(cutter.samples_per_epoch(), 8);
  EXPECT_EQ(cutter.advance({0, 0}), (Cursor{0, 4}));
  EXPECT_EQ(cutter.advance({0, 4}), (Cursor{1, 0}));
  EXPECT_EQ(cutter.locate({0, 4}, 3), (Cursor{0, 7}));
  // A cursor from a run with another global batch: the rest of the epoch is too short for a step.
  EXPECT_EQ(cutter.locate({2, 7}, 1), (Cursor{3, 1}));
  EXPECT_EQ(cutter.advance({2, 7}), (Cursor{3, 4}));
}

TEST(EpochBatching, FilledStepsTakeEachPositionOnce) {
  for (const std::int64_t global : {3, 4, 10, 25}) {
    const EpochBatching cutter{.samples = 10, .global_batch = global, .drop_last = false};
    EXPECT_EQ(cutter.samples_per_epoch(), 10);
    Cursor cursor{0, 0};
    std::int64_t expected = 0;
    for (int step = 0; step < 20; ++step) {
      for (std::int64_t row = 0; row < global; ++row, ++expected) {
        EXPECT_EQ(cutter.locate(cursor, row), (Cursor{expected / 10, expected % 10}));
      }
      cursor = cutter.advance(cursor);
      EXPECT_LT(cursor.position, 10);
    }
  }
}

TEST(SampleOrder, ASubsetIsTheSameInEveryEpochAndOrder) {
  constexpr std::int64_t samples = 50, all = 1000;
  const auto sorted = [](std::vector<std::int64_t> list) {
    std::sort(list.begin(), list.end());
    return list;
  };
  SampleOrder order{.seed = 4, .samples = samples, .shuffle = Shuffle::full, .subset_of = all};
  const std::vector<std::int64_t> first = epoch_of(order, 0);
  EXPECT_NE(epoch_of(order, 1), first);
  EXPECT_EQ(sorted(epoch_of(order, 1)), sorted(first));
  order.shuffle = Shuffle::none;
  EXPECT_EQ(sorted(epoch_of(order, 7)), sorted(first));
  for (std::int64_t number = 0; number < samples; ++number)
    EXPECT_EQ(order.index_of(number), order.sample_at(3, number));
  const std::set<std::int64_t> indices(first.begin(), first.end());
  EXPECT_EQ(std::ssize(indices), samples);
  EXPECT_GE(*indices.begin(), 0);
  EXPECT_LT(*indices.rbegin(), all);
  EXPECT_GT(*indices.rbegin(), all / 2) << "they come from the whole dataset";
  // A larger subset contains a smaller one; another seed gives another one.
  SampleOrder more = order, other = order;
  more.samples = 2 * samples;
  for (std::int64_t number = 0; number < samples; ++number)
    EXPECT_EQ(more.index_of(number), order.index_of(number));
  other.seed = 5;
  EXPECT_NE(sorted(epoch_of(other, 0)), sorted(first));
}

}  // namespace
}  // namespace trireme::data
