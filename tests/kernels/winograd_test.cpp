// SPDX-License-Identifier: Apache-2.0
//
// Winograd's algorithm on the CPU against sums in double precision, for images of any size, and
// its bits for other numbers of threads and other batches. convolution_test.cpp covers its use by
// the ops.
// Errors are relative to the root mean square of the result. Most of the error is rounding in the
// transforms, which hardly depends on the number of channels.
// Without AVX-512 the vectors have 4 or 8 lanes; the program uses these kernels with 16 only.

#include "ops/cpu/winograd/winograd_kernel.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include "ops/cpu/convolution.hpp"
#include "ops/cpu/winograd/winograd.hpp"
#include "trireme/base/philox.hpp"

namespace trireme::ops::cpu {
namespace {

using Numbers = std::vector<float>;

Numbers normal_numbers(std::int64_t count, std::string_view name) {
  const std::uint64_t key = random_key(1, name);
  Numbers numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<float>(normal_at(key, i));
  return numbers;
}

std::string name_of(const WinogradShape& s) {
  return fmt::format("{} images of {}x{}, {} -> {} channels", s.batch, s.height, s.width,
                     s.in_channels, s.out_channels);
}

/// Whole tiles, partial ones, images smaller than a tile, several strips, several chunks with a
/// remainder, and 1 to 14 tiles: the kernel has a form for each number that is computed at once.
std::vector<WinogradShape> shapes() {
  const std::int64_t n = winograd_channel_multiple();
  std::vector<WinogradShape> shapes{{1, 1, 1, n, n},     {3, 4, 4, n, 2 * n},  {2, 7, 5, 2 * n, n},
                                    {1, 2, 9, 3 * n, n}, {1, 13, 8, n, 3 * n}, {150, 3, 2, n, n},
                                    {2, 41, 43, n, n}};
  for (std::int64_t tiles = 1; tiles <= 14; ++tiles) shapes.push_back({tiles, 4, 4, n, n});
  return shapes;
}

/// The tensors of a convolution and its results by the kernels.
struct Winograd {
  WinogradShape s;
  Numbers x, w, dy;

  explicit Winograd(const WinogradShape& shape)
      : s(shape),
        x(normal_numbers(shape.batch * shape.height * shape.width * shape.in_channels, "x")),
        w(normal_numbers(9 * shape.in_channels * shape.out_channels, "w")),
        dy(normal_numbers(shape.batch * shape.height * shape.width * shape.out_channels, "dy")) {}

  Numbers convolve(WinogradShape shape, WinogradDirection direction, const Numbers& from) const {
    Numbers u(winograd_weight_size(shape), NAN), scratch(winograd_scratch_size(shape), NAN),
        to(shape.batch * shape.height * shape.width * shape.out_channels, NAN);
    transform_winograd_weight(shape, direction, w.data(), u.data());
    winograd_convolution(shape, from.data(), u.data(), scratch.data(), to.data());
    return to;
  }
  Numbers forward() const { return convolve(s, WinogradDirection::forward, x); }
  Numbers backward_data() const {
    WinogradShape exchanged = s;
    std::swap(exchanged.in_channels, exchanged.out_channels);
    return convolve(exchanged, WinogradDirection::backward_data, dy);
  }
  Numbers weight_gradient() const {
    Numbers scratch(winograd_gradient_scratch_size(s), NAN), dw(w.size(), NAN);
    winograd_weight_gradient(s, x.data(), dy.data(), scratch.data(), dw.data());
    return dw;
  }
};

/// The same results as sums of their products in double precision.
struct Reference {
  std::vector<double> y, dx, dw;

  explicit Reference(const Winograd& of) : y(of.dy.size()), dx(of.x.size()), dw(of.w.size()) {
    const WinogradShape& s = of.s;
    const std::int64_t taps = 9, width = 3;
    for (std::int64_t pixel = 0; pixel < s.batch * s.height * s.width; ++pixel) {
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        const std::int64_t down = tap / width - 1, right = tap % width - 1,
                           row = pixel / s.width % s.height + down,
                           column = pixel % s.width + right;
        if (row < 0 || row >= s.height || column < 0 || column >= s.width) continue;
        const std::int64_t first_x = (pixel + down * s.width + right) * s.in_channels;
        for (std::int64_t k = 0; k < s.out_channels; ++k) {
          const std::int64_t out = pixel * s.out_channels + k,
                             first_w = (k * taps + tap) * s.in_channels;
          double sum = 0;
          const double dy = of.dy[out];
          for (std::int64_t c = 0; c < s.in_channels; ++c) {
            const double x = of.x[first_x + c], w = of.w[first_w + c];
            sum += x * w;
            dx[first_x + c] += dy * w;
            dw[first_w + c] += dy * x;
          }
          y[out] += sum;
        }
      }
    }
  }
};

/// Returns the largest error, relative to the root mean square of the expected numbers.
double relative_error(const Numbers& found, const std::vector<double>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double squares = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    squares += expected[i] * expected[i];
    EXPECT_TRUE(std::isfinite(found[i])) << "number " << i;
    largest = std::max(largest, std::abs(found[i] - expected[i]));
  }
  return largest / std::sqrt(squares / static_cast<double>(expected.size()));
}

TEST(Winograd, ResultsAreTheSumsOfTheirProducts) {
  // Twice the largest errors of these cases, 6.5e-6 and 3.8e-6 with AVX-512.
  constexpr double of_convolution = 1.3e-5, of_gradient = 7.7e-6;
  for (const WinogradShape& s : shapes()) {
    const Winograd winograd(s);
    const Reference expected(winograd);
    EXPECT_LE(relative_error(winograd.forward(), expected.y), of_convolution) << name_of(s);
    EXPECT_LE(relative_error(winograd.backward_data(), expected.dx), of_convolution) << name_of(s);
    EXPECT_LE(relative_error(winograd.weight_gradient(), expected.dw), of_gradient) << name_of(s);
  }
}

TEST(Winograd, BitsDoNotDependOnTheNumberOfThreads) {
  for (const WinogradShape& s : shapes()) {
    const Winograd one(s);
    const Numbers y = one.forward(), dx = one.backward_data(), dw = one.weight_gradient();
    const std::int64_t tiles = s.batch * winograd_tiles_per_image(s.height, s.width);
    std::vector<int> numbers{2, 3};
    if (tiles <= 4) numbers.push_back(static_cast<int>(tiles) + 1);
    for (const int threads : numbers) {
      Winograd several = one;
      several.s.threads = threads;
      EXPECT_EQ(several.forward(), y) << name_of(s) << ", " << threads << " threads";
      EXPECT_EQ(several.backward_data(), dx) << name_of(s) << ", " << threads << " threads";
      EXPECT_EQ(several.weight_gradient(), dw) << name_of(s) << ", " << threads << " threads";
    }
  }
}

TEST(Winograd, BitsOfAnImageDoNotDependOnTheBatch) {
  for (const WinogradShape& s : shapes()) {
    const Winograd all(s);
    Winograd last(s);
    last.s.batch = 1;
    last.x.erase(last.x.begin(), last.x.end() - s.height * s.width * s.in_channels);
    last.dy.erase(last.dy.begin(), last.dy.end() - s.height * s.width * s.out_channels);
    const auto expect_end = [&](const Numbers& found, const Numbers& expected) {
      EXPECT_TRUE(std::equal(found.rbegin(), found.rend(), expected.rbegin())) << name_of(s);
    };
    expect_end(last.forward(), all.forward());
    expect_end(last.backward_data(), all.backward_data());
  }
}

/// Row 5 and column 5 are among the inputs of the second tile of each axis only.
TEST(Winograd, AnInfinitePixelFillsItsTileAndNoOther) {
  const std::int64_t n = winograd_channel_multiple(), side = 12;
  Winograd winograd({2, side, side, n, n});
  const Numbers before = winograd.forward();
  winograd.x[static_cast<std::size_t>(((side + 5) * side + 5) * n + 3)] =
      std::numeric_limits<float>::infinity();
  const Numbers after = winograd.forward();
  for (std::size_t i = 0; i < after.size(); ++i) {
    const std::int64_t pixel = static_cast<std::int64_t>(i) / n, image = pixel / (side * side),
                       row = pixel / side % side, column = pixel % side;
    if (image == 1 && row / 4 == 1 && column / 4 == 1) {
      EXPECT_FALSE(std::isfinite(after[i])) << "row " << row << " column " << column;
    } else {
      EXPECT_EQ(after[i], before[i]) << "image " << image << " row " << row << " column " << column;
    }
  }
}

/// A gradient of channel 3 that is not a number spoils the filters of this channel, and its tile of
/// the gradient of the input.
TEST(Winograd, ANaNInAGradientIsNotLost) {
  const std::int64_t n = winograd_channel_multiple(), side = 12, taps = 9;
  Winograd winograd({2, side, side, n, n});
  const Numbers dx = winograd.backward_data(), dw = winograd.weight_gradient();
  winograd.dy[static_cast<std::size_t>(((side + 5) * side + 5) * n + 3)] = NAN;
  const Numbers dx_after = winograd.backward_data(), dw_after = winograd.weight_gradient();
  for (std::int64_t i = 0; i < std::ssize(dw); ++i) {
    const std::int64_t channel_out = i / (taps * n);
    if (channel_out == 3) {
      EXPECT_TRUE(std::isnan(dw_after[i])) << "number " << i;
    } else {
      EXPECT_EQ(dw_after[i], dw[i]) << "number " << i;
    }
  }
  for (std::int64_t i = 0; i < std::ssize(dx); ++i) {
    const std::int64_t pixel = i / n, row = pixel / side % side, column = pixel % side;
    if (pixel / (side * side) == 1 && row / 4 == 1 && column / 4 == 1) {
      EXPECT_TRUE(std::isnan(dx_after[i])) << "row " << row << " column " << column;
    } else {
      EXPECT_EQ(dx_after[i], dx[i]) << "row " << row << " column " << column;
    }
  }
}

/// Sets the number of threads of products that are made while it exists.
struct ThreadScope {
  int before = omp_get_max_threads();
  explicit ThreadScope(int threads) { omp_set_num_threads(threads); }
  ~ThreadScope() { omp_set_num_threads(before); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;
};

TEST(Winograd, IsPreferredWhereItIsFaster) {
  const std::int64_t n = winograd_channel_multiple();
  const Convolution c{128, 28, 28, 2 * n, n, 3, 1, 1, DType::float32};
  const ThreadScope two(2);
  EXPECT_TRUE(supports_winograd(c));
  EXPECT_EQ(prefers_winograd(c), is_winograd_wide());
  const auto changed = [&](auto change) {
    Convolution other = c;
    change(other);
    return other;
  };
  // Layers of tests/system/layouts_test.py, on one thread.
  for (const Convolution& layer : {Convolution{16, 12, 12, 32, 32, 3, 1, 1, DType::float32},
                                   Convolution{16, 6, 6, 64, 64, 3, 1, 1, DType::float32}}) {
    EXPECT_EQ(prefers_winograd(layer), is_winograd_wide());
  }
  // An image has 49 tiles.
  const Convolution two_images = changed([](Convolution& o) { o.batch = 2; });
  EXPECT_EQ(prefers_winograd(two_images), is_winograd_wide());
  EXPECT_FALSE(prefers_winograd(changed([](Convolution& o) { o.batch = 1; }))) << "too few tiles";
  {
    const ThreadScope twelve(12);
    EXPECT_EQ(prefers_winograd(two_images), is_winograd_wide());
  }
  {
    const ThreadScope thirteen(13);
    EXPECT_FALSE(prefers_winograd(two_images)) << "too few tiles for each thread";
  }
  const Convolution small = changed([](Convolution& o) { o.height = o.width = 5; });
  EXPECT_TRUE(supports_winograd(small));
  EXPECT_FALSE(prefers_winograd(small)) << "four tiles for little more than one";
  for (const Convolution& other : {changed([](Convolution& o) { o.dtype = DType::bfloat16; }),
                                   changed([](Convolution& o) { o.stride = 2; }),
                                   changed([](Convolution& o) { o.padding = 0; }),
                                   changed([](Convolution& o) { o.kernel = 1; }),
                                   changed([](Convolution& o) { o.dilation = 2; }),
                                   changed([](Convolution& o) { o.in_channels = 3; }),
                                   changed([](Convolution& o) { ++o.out_channels; })}) {
    EXPECT_FALSE(supports_winograd(other));
    EXPECT_FALSE(prefers_winograd(other));
  }
}

/// Only Winograd's algorithm transforms the weight to 36 numbers for each filter.
TEST(Winograd, IsNotUsedWithoutFusions) {
  const std::int64_t n = winograd_channel_multiple();
  const Convolution c{16, 8, 8, n, n, 3, 1, 1, DType::float32};
  const ThreadScope two(2);
  ASSERT_EQ(prefers_winograd(c), is_winograd_wide());
  const std::int64_t transformed = 36 * n * n * std::int64_t{sizeof(float)};
  for (const bool fusions : {true, false}) {
    Library library(fusions);
    const bool expected = fusions && is_winograd_wide();
    EXPECT_EQ(convolution_forward(library, c).second.bytes == transformed, expected);
    EXPECT_EQ(convolution_backward_data(library, c).second.bytes == transformed, expected);
    const WinogradShape shape{16, 8, 8, n, n, 2};
    EXPECT_EQ(convolution_backward_weight(library, c).scratchpad_bytes ==
                  winograd_gradient_scratch_size(shape) * std::int64_t{sizeof(float)},
              expected);
  }
}

}  // namespace
}  // namespace trireme::ops::cpu
