// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/permutation.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace trireme {
namespace {

class PermutationSizes : public testing::TestWithParam<std::uint64_t> {};

TEST_P(PermutationSizes, EveryIndexStandsAtOnePosition) {
  const std::uint64_t size = GetParam();
  for (std::uint64_t key = 0; key < 5; ++key) {
    const Permutation permutation(random_key(key, "test"), size);
    std::vector<bool> seen(size, false);
    for (std::uint64_t position = 0; position < size; ++position) {
      const std::uint64_t index = permutation(position);
      ASSERT_LT(index, size);
      ASSERT_FALSE(seen[index]) << index << " stands twice";
      seen[index] = true;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PermutationSizes,
                         testing::Values(1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 97, 255, 256,
                                         257, 1000, 1021, 4096, 60000, 65537));

// Over many keys each of 12 indices must appear at each of 12 positions equally often. Chi-square
// with 11 x 11 degrees of freedom has mean 121 and standard deviation sqrt(242) = 15.6. A correct
// generator exceeds six deviations about once in 10^7 runs, and the keys are fixed.
TEST(Permutation, IndicesAreSpreadEvenlyOverPositions) {
  constexpr int size = 12, keys = 12000;
  std::vector<std::vector<int>> count(size, std::vector<int>(size, 0));
  for (int key = 0; key < keys; ++key) {
    const Permutation permutation(random_key(static_cast<std::uint64_t>(key), "epoch"), size);
    for (int position = 0; position < size; ++position)
      ++count[static_cast<std::size_t>(position)]
             [permutation(static_cast<std::uint64_t>(position))];
  }
  const double expected = static_cast<double>(keys) / size;
  double chi_square = 0;
  for (const auto& row : count)
    for (const int n : row) chi_square += (n - expected) * (n - expected) / expected;
  const double freedom = (size - 1.0) * (size - 1.0);
  EXPECT_LT(chi_square, freedom + 6 * std::sqrt(2 * freedom));
}

// Successive positions of a random permutation are uncorrelated. The sample correlation of n pairs
// has standard deviation 1/sqrt(n).
TEST(Permutation, NeighborsAreNotCorrelated) {
  constexpr std::uint64_t size = 60000;
  for (std::uint64_t key = 0; key < 4; ++key) {
    const Permutation permutation(random_key(key, "neighbours"), size);
    const double mean = (size - 1) / 2.0, variance = (static_cast<double>(size) * size - 1) / 12;
    double sum = 0;
    for (std::uint64_t position = 0; position + 1 < size; ++position)
      sum += (static_cast<double>(permutation(position)) - mean) *
             (static_cast<double>(permutation(position + 1)) - mean);
    EXPECT_LT(std::abs(sum / (size - 1) / variance), 5 / std::sqrt(static_cast<double>(size)));
  }
}

TEST(Permutation, KeysGiveDifferentOrders) {
  constexpr std::uint64_t size = 1000;
  const Permutation one(1, size), two(2, size);
  int equal = 0;
  for (std::uint64_t position = 0; position < size; ++position)
    equal += one(position) == two(position);
  // The number of equal positions of two random orders is Poisson distributed with mean 1. Ten or
  // more occur once in 10^7.
  EXPECT_LT(equal, 10);
}

TEST(Spread, TakesAllOrOneFromEachPart) {
  EXPECT_EQ(spread(3, 5), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_TRUE(spread(0, 5).empty());
  for (const std::int64_t total : {101, 1000, 1'000'000}) {
    const std::vector<std::int64_t> places = spread(total, 100);
    ASSERT_EQ(places.size(), 100u);
    int even = 0;
    for (std::int64_t part = 0; part < 100; ++part) {
      const std::int64_t place = places[static_cast<std::size_t>(part)];
      EXPECT_GE(place, part * total / 100);
      EXPECT_LT(place, (part + 1) * total / 100);
      even += place % 2 == 0 ? 1 : 0;
    }
    // Four deviations of a fair coin.
    EXPECT_NEAR(even, 50, 20) << total;
  }
}

}  // namespace
}  // namespace trireme
