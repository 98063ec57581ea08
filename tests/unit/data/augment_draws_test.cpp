// SPDX-License-Identifier: Apache-2.0
//
// Draws of random erasing, mixup and CutMix: their distributions, and torchvision's boxes.
#include "data/images/augment_draws.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/mix_reference.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/loader.hpp"

namespace trireme::data {
namespace {

constexpr int draws = 20000;

std::vector<double> betas(double alpha) {
  std::vector<double> numbers;
  for (std::uint64_t i = 0; i < draws; ++i)
    numbers.push_back(draw_beta(alpha, mix64(random_key(1, "betas") + i)));
  return numbers;
}

/// Expects the mean of the numbers, to five standard errors.
void expect_mean(const std::vector<double>& numbers, double expected, double deviation,
                 const std::string& what) {
  double sum = 0;
  for (const double number : numbers) sum += number;
  const double count = static_cast<double>(numbers.size());
  EXPECT_NEAR(sum / count, expected, 5 * deviation / std::sqrt(count)) << what;
}

TEST(BetaDraw, HasTheMeanAndTheVarianceOfTheDistribution) {
  for (const double alpha : {0.001, 0.1, 0.2, 0.4, 1.0, 2.0, 8.0, 1000.0}) {
    std::vector<double> numbers = betas(alpha);
    for (const double number : numbers) ASSERT_TRUE(number >= 0 && number <= 1) << number;
    const double variance = 1 / (4 * (2 * alpha + 1)),
                 excess_kurtosis = -6 / (2 * alpha + 3);  // Johnson, Kotz 1970, chapter 24
    expect_mean(numbers, 0.5, std::sqrt(variance), fmt::format("mean, alpha {}", alpha));
    for (double& number : numbers) number = (number - 0.5) * (number - 0.5);
    expect_mean(numbers, variance, variance * std::sqrt(2 + excess_kurtosis),
                fmt::format("variance, alpha {}", alpha));
  }
}

/// Kolmogorov's test against the two cases whose distribution function is elementary. A right
/// generator exceeds 2.2 / sqrt(n) once in 8000 times.
TEST(BetaDraw, HasTheDistributionFunction) {
  const auto uniform = [](double x) { return x; };
  const auto arcsine = [](double x) { return 2 / std::numbers::pi * std::asin(std::sqrt(x)); };
  const auto farthest = [](std::vector<double> numbers, const auto& function) {
    std::sort(numbers.begin(), numbers.end());
    double distance = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      distance =
          std::max(distance, std::abs(function(numbers[i]) - static_cast<double>(i) / draws));
    return distance;
  };
  EXPECT_LT(farthest(betas(1), uniform), 2.2 / std::sqrt(draws));
  EXPECT_LT(farthest(betas(0.5), arcsine), 2.2 / std::sqrt(draws));
  EXPECT_GT(farthest(betas(0.8), uniform), 2.2 / std::sqrt(draws));
}

TEST(PastedRange, IsTorchvisions) {
  const nlohmann::json reference = test::mix_reference();
  EXPECT_EQ(reference.at("boxes").size(), 20u);
  for (const nlohmann::json& box : reference.at("boxes")) {
    const std::vector<double> draw = box.at("draw");
    const std::vector<int> range = box.at("range");
    const auto integer = [&](int i) { return static_cast<std::int64_t>(draw.at(i)); };
    const ImageExtents image{integer(3), integer(4)};
    const ops::PixelRange found = pasted_around(integer(1), integer(2), draw[0], image);
    EXPECT_EQ((std::vector<int>{found.top, found.bottom, found.left, found.right}), range)
        << box.dump();
    EXPECT_DOUBLE_EQ(1 - part_of_area(found, image), box.at("weight").get<double>()) << box.dump();
  }
}

TEST(ErasedRange, HasTheProbabilityAreaRatioAndPlaceOfTorchvision) {
  const RandomErasing erase{.probability = 0.3, .scale = {0.02, 0.2}, .ratio = {0.3, 3.3}};
  const ImageExtents image{1000, 800};
  const std::uint64_t key = random_key(1, "erase");
  std::vector<double> areas, ratios, tops, lefts;
  for (int sample = 0; sample < draws; ++sample) {
    const ops::PixelRange range = draw_erased(erase, key, image, 2, sample);
    const double height = range.bottom - range.top, width = range.right - range.left;
    if (height == 0) continue;
    EXPECT_TRUE(range.bottom <= image.height && range.right <= image.width);
    areas.push_back(height * width / (1000.0 * 800.0));
    ratios.push_back(std::log(height / width));
    tops.push_back(range.top / (1000 - height));
    lefts.push_back(range.left / (800 - width));
  }
  const double count = static_cast<double>(areas.size());
  EXPECT_NEAR(count / draws, 0.3, 5 * std::sqrt(0.3 * 0.7 / draws));
  // Every rectangle fits: sqrt(0.2 * 3.3) < 1. Sides of 70 pixels and more are rounded, without
  // bias. A uniform number has the deviation range / sqrt(12).
  const double low = std::log(0.3), high = std::log(3.3);
  expect_mean(areas, 0.11, 0.18 / std::sqrt(12), "area");
  expect_mean(ratios, (low + high) / 2, (high - low) / std::sqrt(12), "logarithm of the ratio");
  expect_mean(tops, 0.5, 1 / std::sqrt(12), "top");
  expect_mean(lefts, 0.5, 1 / std::sqrt(12), "left");
  EXPECT_GE(*std::min_element(areas.begin(), areas.end()), 0.02 * 0.98);
  EXPECT_LE(*std::max_element(areas.begin(), areas.end()), 0.2 * 1.01);
}

/// Ten rectangles of more than the image: nothing is erased. An image of one pixel has no smaller
/// rectangle.
TEST(ErasedRange, IsEmptyIfNoRectangleFits) {
  const auto erased = [](const RandomErasing& erase, ImageExtents image) {
    int count = 0;
    for (int sample = 0; sample < 100; ++sample) {
      const ops::PixelRange range = draw_erased(erase, 1, image, 0, sample);
      count += range.bottom > range.top && range.right > range.left;
    }
    return count;
  };
  EXPECT_EQ(erased({.probability = 1, .scale = {1, 1}, .ratio = {0.3, 3.3}}, {32, 32}), 0);
  EXPECT_EQ(erased({.probability = 1}, {1, 1}), 0);
  EXPECT_EQ(erased({.probability = 1, .scale = {0.1, 0.1}, .ratio = {1, 1}}, {32, 32}), 100);
}

struct Pair {
  std::uint64_t keys[2];
  ops::ImageTransform transforms[2];
};
Pair mixed(const Augmentation& augmentation, std::int64_t epoch, std::int64_t a, std::int64_t b) {
  Pair pair{{sample_key(epoch, a), sample_key(epoch, b)}, {}};
  augmentation.mix_pair(pair.keys, pair.transforms);
  return pair;
}

/// Both rows take the same kind; a sample's weight is its own, whoever the partner is.
TEST(MixedPair, IsAFunctionOfTheSamplesAndTheirCoinIsFair) {
  const Augmentation both{
      .seed = 3, .height = 30, .width = 20, .mixing = {.mixup = 0.4, .cutmix = 1}};
  Augmentation mixup = both;
  mixup.mixing.cutmix = 0;
  int pasted = 0;
  std::set<float> weights;
  for (int sample = 0; sample < 2000; ++sample) {
    const Pair pair = mixed(both, 1, sample, sample + 5000);
    const ops::ImageTransform &own = pair.transforms[0], &other = pair.transforms[1];
    EXPECT_EQ(own.mix, other.mix);
    pasted += own.mix == ops::Mix::cutmix;
    const Pair apart = mixed(mixup, 1, sample + 9000, sample);
    EXPECT_EQ(apart.transforms[1].mix, ops::Mix::mixup);
    if (own.mix == ops::Mix::mixup) {
      EXPECT_EQ(apart.transforms[1].weight, own.weight);
      EXPECT_EQ(own.pasted.bottom, 0);
      weights.insert(own.weight);
    } else {
      EXPECT_FLOAT_EQ(own.weight, static_cast<float>(1 - (own.pasted.bottom - own.pasted.top) *
                                                             (own.pasted.right - own.pasted.left) /
                                                             (30.0 * 20.0)));
    }
  }
  EXPECT_NEAR(pasted, 1000, 5 * std::sqrt(2000 * 0.25));
  EXPECT_GT(static_cast<int>(weights.size()), (2000 - pasted) * 9 / 10);  // some round to 0 or 1
  EXPECT_NE(mixed(mixup, 1, 7, 8).transforms[0].weight, mixed(mixup, 2, 7, 8).transforms[0].weight);
  mixup.seed = 4;
  EXPECT_NE(mixed(mixup, 1, 7, 8).transforms[0].weight, mixed(both, 1, 7, 8).transforms[0].weight);
}

/// The center is uniform: the mean of the weight is its mean over all centers and all sizes.
TEST(MixedPair, PastesAroundAUniformCenter) {
  const Augmentation augmentation{
      .seed = 3, .height = 16, .width = 24, .mixing = {.mixup = 0, .cutmix = 1}};
  // Beta(1, 1) is uniform: the middles of equal parts of [0, 1].
  double sum = 0, squares = 0;
  constexpr int parts = 400;
  for (int part = 0; part < parts; ++part) {
    for (std::int64_t row = 0; row < 16; ++row) {
      for (std::int64_t column = 0; column < 24; ++column) {
        const double weight =
            1 - part_of_area(pasted_around(row, column, (part + 0.5) / parts, {16, 24}), {16, 24});
        sum += weight;
        squares += weight * weight;
      }
    }
  }
  const double cases = parts * 16 * 24, mean = sum / cases;
  std::vector<double> weights;
  for (int sample = 0; sample < draws; sample += 2) {
    const Pair pair = mixed(augmentation, 0, sample, sample + 1);
    for (const ops::ImageTransform& transform : pair.transforms)
      weights.push_back(transform.weight);
  }
  expect_mean(weights, mean, std::sqrt(squares / cases - mean * mean), "weight");
}

}  // namespace
}  // namespace trireme::data
