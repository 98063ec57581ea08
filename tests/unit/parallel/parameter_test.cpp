// SPDX-License-Identifier: Apache-2.0
//
// ParameterList, the order of elements in memory, and initial values: independent of partition and
// order, dependent on seed and name, with the requested distribution.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/check.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::parallel {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

ParameterSpec convolution() {
  return {.name = "conv1.weight",
          .shape = {7, 5, 3, 2},
          .initializer = {Initializer::Kind::normal, 0.5},
          .inner = InnerOrder::channels_last};
}

std::vector<float> initial_rows(const ParameterSpec& spec, std::uint64_t seed, std::int64_t begin,
                                std::int64_t end) {
  std::vector<float> rows(static_cast<std::size_t>((end - begin) * spec.row_elements()));
  initialize_rows(spec, TensorPartition(spec), seed, begin, end, rows.data());
  return rows;
}

TEST(ParameterList, RefusesANameTwice) {
  ParameterList list;
  list.begin_block(0);
  const ParameterId first = list.declare({.name = "a", .shape = {3}});
  list.begin_block(1);
  const ParameterId second = list.declare({.name = "b", .shape = {4, 2}});
  EXPECT_EQ(list[first].name, "a");
  EXPECT_EQ(list[second].name, "b");
  EXPECT_EQ(list.entries()[1].block, 1);
  EXPECT_EQ(list.blocks(), 2);
  EXPECT_THAT([&] { list.declare({.name = "a", .shape = {3}}); },
              ThrowsMessage<Failure>(HasSubstr("parameter a is declared twice")));
}

TEST(ParameterList, ATiedNameIsOneParameterOfItsFirstBlock) {
  ParameterList list(1, 2);
  const ParameterSpec spec{
      .name = "wte.weight", .shape = {7, 4}, .split = {Split::Along::rows}, .tied = true};
  list.begin_block(0);
  const ParameterId first = list.declare(spec);
  list.begin_block(5);
  list.declare({.name = "ln_f.weight", .shape = {4}});
  EXPECT_EQ(list.declare(spec).index, first.index);
  EXPECT_EQ(list.entries().size(), 2u);
  EXPECT_EQ(list.entries()[0].block, 0);
  EXPECT_EQ(list.partition(first).shape(), (Shape{4, 4}));
  EXPECT_EQ(list.find("ln_f.weight"), 1);
  EXPECT_EQ(list.find("wte"), -1);
  ParameterSpec other = spec;
  other.split.along = Split::Along::columns;
  EXPECT_THROW(list.declare(other), Failure);
  other = spec;
  other.tied = false;
  EXPECT_THROW(list.declare(other), Failure);
}

TEST(MemoryIndex, IsTheTransposeOfARowAndCoversIt) {
  const ParameterSpec spec = convolution();
  std::vector<std::int64_t> seen;
  for (std::int64_t channel = 0; channel < 5; ++channel) {
    for (std::int64_t y = 0; y < 3; ++y) {
      for (std::int64_t x = 0; x < 2; ++x) {
        const std::int64_t file = (channel * 3 + y) * 2 + x, memory = (y * 2 + x) * 5 + channel;
        EXPECT_EQ(memory_index(spec, file), memory);
        seen.push_back(memory_index(spec, file));
      }
    }
  }
  std::sort(seen.begin(), seen.end());
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<std::int64_t>(i));
  EXPECT_EQ(TensorPartition(spec).memory_shape(), (Shape{7, 3, 2, 5}));
  EXPECT_EQ(memory_index({.name = "plain", .shape = {4, 9}}, 7), 7);
}

TEST(InitializeRows, PartsEqualTheWhole) {
  for (const auto kind :
       {Initializer::Kind::constant, Initializer::Kind::normal, Initializer::Kind::uniform}) {
    ParameterSpec spec = convolution();
    spec.initializer.kind = kind;
    const std::vector<float> whole = initial_rows(spec, 9, 0, spec.rows());
    for (std::int64_t begin = 0; begin < spec.rows(); ++begin) {
      for (std::int64_t end = begin; end <= spec.rows(); ++end) {
        const std::vector<float> part = initial_rows(spec, 9, begin, end);
        EXPECT_TRUE(
            std::equal(part.begin(), part.end(), whole.begin() + begin * spec.row_elements()));
      }
    }
  }
}

TEST(InitializeRows, MemoryOrderOnlyMovesElements) {
  ParameterSpec memory = convolution(), file = convolution();
  file.inner = InnerOrder::plain;
  const std::vector<float> a = initial_rows(memory, 1, 0, memory.rows()),
                           b = initial_rows(file, 1, 0, file.rows());
  for (std::int64_t row = 0; row < memory.rows(); ++row) {
    for (std::int64_t inner = 0; inner < memory.row_elements(); ++inner) {
      const std::int64_t start = row * memory.row_elements();
      EXPECT_EQ(a[static_cast<std::size_t>(start + memory_index(memory, inner))],
                b[static_cast<std::size_t>(start + inner)]);
    }
  }
}

TEST(InitializeRows, SeedAndNameChangeIt) {
  ParameterSpec other = convolution();
  other.name = "conv2.weight";
  const std::vector<float> base = initial_rows(convolution(), 1, 0, 7);
  EXPECT_NE(base, initial_rows(convolution(), 2, 0, 7));
  EXPECT_NE(base, initial_rows(other, 1, 0, 7));
  EXPECT_EQ(base, initial_rows(convolution(), 1, 0, 7));
}

TEST(InitializeRows, HasTheSpreadAskedFor) {
  ParameterSpec spec{
      .name = "large", .shape = {400, 250}, .initializer = {Initializer::Kind::normal, 0.02}};
  const double n = 1e5;
  const auto moments = [&] {
    const std::vector<float> values = initial_rows(spec, 3, 0, 400);
    double sum = 0, squares = 0;
    for (const float value : values) sum += value, squares += double{value} * value;
    return std::pair{sum / n, squares / n};
  };
  // Five standard errors: of a mean sigma / sqrt(n); of a variance, normal sigma^2 sqrt(2 / n),
  // uniform v^2 sqrt(4 / 45 / n).
  const auto [normal_mean, normal_variance] = moments();
  EXPECT_NEAR(normal_mean, 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(normal_variance, 4e-4, 5 * 4e-4 * std::sqrt(2 / n));
  spec.initializer = {Initializer::Kind::uniform, 0.1};
  const auto [uniform_mean, uniform_variance] = moments();
  EXPECT_NEAR(uniform_mean, 0, 5 * 0.1 / std::sqrt(3 * n));
  EXPECT_NEAR(uniform_variance, 0.01 / 3, 5 * 0.01 * std::sqrt(4.0 / 45 / n));
  const std::vector<float> values = initial_rows(spec, 3, 0, 400);
  EXPECT_GE(*std::min_element(values.begin(), values.end()), -0.1f);
  EXPECT_LE(*std::max_element(values.begin(), values.end()), 0.1f);
}

}  // namespace
}  // namespace trireme::parallel
