// SPDX-License-Identifier: Apache-2.0
//
// Max, mean and average pooling against loops over the windows: the first of equal maxima,
// gradients, NaNs, ResNet's windows, rows outside of all windows, and the bytes that meta counts.
// Gradients are also checked against finite differences.

#include "trireme/ops/pooling.hpp"

#include <limits>

#include <fmt/format.h>

#include "reference.hpp"

namespace trireme {
namespace {

using ops::Pooling;
using namespace test;

std::string name_of(const Pooling& p) {
  return fmt::format("{} [{}, {}, {}, {}] kernel {} stride {} padding {}", to_string(p.dtype),
                     p.batch, p.height, p.width, p.channels, p.kernel, p.stride, p.padding);
}

Shape input_shape(const Pooling& p) { return {p.batch, p.height, p.width, p.channels}; }

// Calls visit(output, input, index in the window) for every element of every window, in row-major
// order.
template <class Visit>
void for_each_tap(const Pooling& p, const Visit& visit) {
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t i = 0; i < p.out_height(); ++i)
      for (std::int64_t j = 0; j < p.out_width(); ++j)
        for (std::int64_t r = 0; r < p.kernel; ++r)
          for (std::int64_t s = 0; s < p.kernel; ++s) {
            const std::int64_t row = i * p.stride - p.padding + r,
                               column = j * p.stride - p.padding + s;
            if (row < 0 || row >= p.height || column < 0 || column >= p.width) continue;
            for (std::int64_t c = 0; c < p.channels; ++c) {
              visit(((b * p.out_height() + i) * p.out_width() + j) * p.channels + c,
                    ((b * p.height + row) * p.width + column) * p.channels + c, r * p.kernel + s);
            }
          }
}

struct Maxima {
  Values y, winners;
  /// index of the maximum in the input
  std::vector<std::int64_t> source;
};
Maxima reference_max(const Pooling& p, const Values& x) {
  const std::int64_t n = p.output_shape().elements();
  Maxima m{Values(n, -std::numeric_limits<double>::infinity()), Values(n, -1),
           std::vector<std::int64_t>(n, -1)};
  for_each_tap(p, [&](auto o, auto i, auto place) {
    if (m.source[o] >= 0 && !(x[i] > m.y[o])) return;
    m.y[o] = x[i];
    m.winners[o] = static_cast<double>(place);
    m.source[o] = i;
  });
  return m;
}

std::vector<Pooling> cases() {
  std::vector<Pooling> all;
  for (const DType dtype : compute_types) {
    all.push_back({1, 1, 1, 1, 1, 1, 0, dtype});
    all.push_back({2, 7, 5, 3, 3, 2, 1, dtype});
    // More channels than one block of sums, and no multiple of it.
    all.push_back({2, 13, 11, 67, 3, 2, 1, dtype});
    all.push_back({1, 8, 8, 64, 2, 2, 0, dtype});
    all.push_back({2, 15, 14, 64, 3, 2, 1, dtype});  // ResNet's windows
    all.push_back({1, 9, 8, 24, 5, 2, 2, dtype});
    all.push_back({3, 6, 9, 17, 3, 1, 1, dtype});
    all.push_back({1, 9, 9, 5, 7, 2, 3, dtype});
    // rows and columns outside of all windows
    all.push_back({1, 9, 9, 5, 2, 3, 0, dtype});
  }
  return all;
}

TEST(MaxPool, ForwardTakesTheFirstMaximum) {
  for (const Pooling& p : cases()) {
    OpsFixture f;
    const Tensor random = f.random(p.dtype, input_shape(p), "x"),
                 ties = f.make(p.dtype, input_shape(p));
    Values rounded = values(random);
    // Few different values, so many are equal.
    for (double& value : rounded) value = std::round(value);
    assign(ties, rounded);
    for (const Tensor& x : {random, ties}) {
      const Tensor y = f.make(p.dtype, p.output_shape()),
                   winners = f.make(DType::uint8, p.output_shape());
      max_pool_forward(f.context, p, x, y, winners);
      const Maxima expected = reference_max(p, values(x));
      expect_close(y, expected.y, 0, 0, name_of(p));
      expect_close(winners, expected.winners, 0, 0, name_of(p));
    }
  }
}

TEST(MaxPool, BackwardGivesEachGradientToItsWinner) {
  for (const Pooling& p : cases()) {
    OpsFixture f;
    const Tensor x = f.random(p.dtype, input_shape(p), "x"),
                 dy = f.random(p.dtype, p.output_shape(), "dy");
    const Tensor y = f.make(p.dtype, p.output_shape()),
                 winners = f.make(DType::uint8, p.output_shape());
    // Every element must be overwritten.
    const Tensor dx = f.filled(p.dtype, input_shape(p), 77);
    max_pool_forward(f.context, p, x, y, winners);
    max_pool_backward(f.context, p, dy, winners, dx);
    const Maxima m = reference_max(p, values(x));
    const Values gradient = values(dy);
    Values expected(x.elements()), scale(x.elements());
    for (std::int64_t o = 0; o < dy.elements(); ++o) {
      expected[m.source[o]] += gradient[o];
      scale[m.source[o]] += std::abs(gradient[o]);
    }
    expect_within(dx, expected,
                  sum_bounds(expected, scale, static_cast<double>(p.kernel * p.kernel), p.dtype),
                  name_of(p));
  }
}

TEST(MaxPool, BackwardAgreesWithFiniteDifferences) {
  for (const Pooling& p : cases()) {
    if (p.dtype != DType::float32) continue;
    OpsFixture f;
    const Tensor x = f.random(p.dtype, input_shape(p), "x"),
                 dy = f.random(p.dtype, p.output_shape(), "dy");
    const Tensor y = f.make(p.dtype, p.output_shape()),
                 winners = f.make(DType::uint8, p.output_shape()),
                 dx = f.make(p.dtype, input_shape(p));
    max_pool_forward(f.context, p, x, y, winners);
    max_pool_backward(f.context, p, dy, winners, dx);
    const Values v = values(f.random(p.dtype, input_shape(p), "v"));
    // The step is far smaller than the distance of two random float32 numbers in a window, so no
    // maximum changes.
    const double along = directional_derivative(
        [&](const Values& at) { return dot(values(dy), reference_max(p, at).y); }, values(x), v,
        1e-7);
    EXPECT_NEAR(dot(values(dx), v), along, 1e-4 * (1 + dot(magnitudes(values(dx)), magnitudes(v))))
        << name_of(p);
  }
}

TEST(MaxPool, NaNIsNotLost) {
  for (const DType dtype : compute_types) {
    for (std::int64_t place = 0; place < 9; ++place) {
      OpsFixture f;
      const Pooling p{1, 3, 3, 1, 3, 1, 0, dtype};
      const Tensor x = f.random(dtype, {1, 3, 3, 1}, "x"), y = f.make(dtype, {1, 1, 1, 1}),
                   winners = f.make(DType::uint8, {1, 1, 1, 1});
      set_value(x, place, std::numeric_limits<double>::quiet_NaN());
      max_pool_forward(f.context, p, x, y, winners);
      EXPECT_TRUE(std::isnan(value_at(y, 0)));
      EXPECT_EQ(value_at(winners, 0), place);
    }
  }
}

struct Average {
  std::int64_t batch, pixels, channels;
};
constexpr Average averages[] = {{1, 1, 1}, {3, 16, 64}, {2, 49, 67}, {2, 300, 130}, {2, 300, 136}};

TEST(AveragePool, ForwardIsTheMeanAndBackwardItsTranspose) {
  for (const DType dtype : compute_types) {
    for (const auto [batch, pixels, channels] : averages) {
      OpsFixture f;
      const Tensor x = f.random(dtype, {batch, pixels, channels}, "x"),
                   dy = f.random(dtype, {batch, channels}, "dy");
      const Tensor y = f.make(dtype, {batch, channels}),
                   dx = f.make(dtype, {batch, pixels, channels});
      average_pool_forward(f.context, batch, pixels, channels, x, y);
      average_pool_backward(f.context, batch, pixels, channels, dy, dx);
      const Values at = values(x), gradient = values(dy);
      Values expected_y(y.elements()), scale(y.elements()), expected_dx(x.elements());
      for (std::int64_t i = 0; i < x.elements(); ++i) {
        const std::int64_t o = i / (pixels * channels) * channels + i % channels;
        expected_y[o] += at[i] / static_cast<double>(pixels);
        scale[o] += std::abs(at[i]) / static_cast<double>(pixels);
        expected_dx[i] = gradient[o] / static_cast<double>(pixels);
      }
      const std::string name =
          fmt::format("{} [{}, {}, {}]", to_string(dtype), batch, pixels, channels);
      // Two roundings beside those of the sum: of 1/pixels and of the product with it.
      expect_within(y, expected_y,
                    sum_bounds(expected_y, scale, static_cast<double>(pixels + 2), dtype), name);
      expect_close(dx, expected_dx, 0,
                   1.01 * unit_roundoff(dtype) + 2 * unit_roundoff(DType::float32), name);
    }
  }
}

TEST(MeanPool, AveragesTheWindowsWithTheirZeros) {
  for (const Pooling& p : cases()) {
    OpsFixture f;
    const Tensor x = f.random(p.dtype, input_shape(p), "x"),
                 dy = f.random(p.dtype, p.output_shape(), "dy"),
                 y = f.filled(p.dtype, p.output_shape(), 77),
                 dx = f.filled(p.dtype, input_shape(p), 77);
    mean_pool_forward(f.context, p, x, y);
    mean_pool_backward(f.context, p, dy, dx);
    const double share = 1.0 / static_cast<double>(p.kernel * p.kernel);
    const Values from = values(x), gradient = values(dy);
    Values mean(y.elements()), mean_scale(y.elements()), sum(x.elements()), sum_scale(x.elements());
    for_each_tap(p, [&](auto o, auto i, auto /*place*/) {
      mean[o] += share * from[i];
      mean_scale[o] += share * std::abs(from[i]);
      sum[i] += share * gradient[o];
      sum_scale[i] += share * std::abs(gradient[o]);
    });
    const auto taps = static_cast<double>(p.kernel * p.kernel + 2);
    expect_within(y, mean, sum_bounds(mean, mean_scale, taps, p.dtype), name_of(p));
    expect_within(dx, sum, sum_bounds(sum, sum_scale, taps, p.dtype), name_of(p));
  }
}

TEST(Pooling, MetaCountsTheBytesOfTheReal) {
  for (const Pooling& p : cases()) {
    OpsFixture real, meta(DeviceKind::meta);
    for (OpsFixture* f : {&real, &meta}) {
      const Tensor x = f->random(p.dtype, input_shape(p), "x"),
                   y = f->make(p.dtype, p.output_shape());
      const Tensor winners = f->make(DType::uint8, p.output_shape()),
                   mean = f->make(p.dtype, {p.batch, p.channels});
      max_pool_forward(f->context, p, x, y, winners);
      max_pool_backward(f->context, p, y, winners, x);
      mean_pool_forward(f->context, p, x, y);
      mean_pool_backward(f->context, p, y, x);
      average_pool_forward(f->context, p.batch, p.height * p.width, p.channels, x, mean);
      average_pool_backward(f->context, p.batch, p.height * p.width, p.channels, mean, x);
    }
    EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes) << name_of(p);
    EXPECT_EQ(meta.context.counters().calls, 6);
    EXPECT_EQ(meta.workspace.peak_bytes(), real.workspace.peak_bytes());
  }
}

}  // namespace
}  // namespace trireme
