// SPDX-License-Identifier: Apache-2.0
//
// GELU, SiLU and SwiGLU against double-precision references: values, gradients, relative error in
// both tails, far-out arguments, and the work that meta counts. The references' derivatives are
// checked against central differences first. Tolerances count the kernels' roundings, which
// kernels/activation.cpp lists.

#include "trireme/ops/activation.hpp"

#include "reference.hpp"

namespace trireme::test {
namespace {

// u: unit roundoff of float32. Bounds count roundings: the kernels' sigmoid has 9 and its
// derivative 14, the exact form's 13 + x^2 / 2 and 6 + x^2 / 2 (kernels/activation.cpp).
// The argument of GELU's tanh form, v = 2 sqrt(2/pi) (x + 0.044715 x^3), has 5.
// d log sigmoid / dv and d log sigmoid' / dv are at most 1, so the roundings of v count |v| times.
constexpr double u = 0x1p-24;
// Below v = -87 the kernels' sigmoid is 0, and that of the exact form for x^2 / 2 > 87. The true
// one is less than 1.2e-38, and |x| is less than 100 there.
constexpr double underflow = 1e-36;

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }
double slope(double v) { return sigmoid(v) * sigmoid(-v); }

const double gelu_scale = std::sqrt(2 / std::acos(-1.0));
double gelu_argument(double x) { return 2 * gelu_scale * (x + 0.044715 * x * x * x); }
double gelu_argument_slope(double x) { return 2 * gelu_scale * (1 + 3 * 0.044715 * x * x); }
/// The tanh form as published. For x < -5, 1 + tanh loses its digits; there the kernel is compared
/// with the sigmoid form.
double gelu_by_tanh(double x) {
  return x / 2 * (1 + std::tanh(gelu_scale * (x + 0.044715 * x * x * x)));
}
double gelu(double x) { return x * sigmoid(gelu_argument(x)); }
double gelu_slope(double x) {
  return sigmoid(gelu_argument(x)) + x * slope(gelu_argument(x)) * gelu_argument_slope(x);
}
double exact_gelu(double x) { return x / 2 * std::erfc(-x / std::sqrt(2)); }
double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)); }
double exact_gelu_slope(double x) {
  return std::erfc(-x / std::sqrt(2)) / 2 + x * normal_density(x);
}
double silu(double x) { return x * sigmoid(x); }
double silu_slope(double x) { return sigmoid(x) + x * slope(x); }

/// A fine grid over [-100, 100], finer around 0, and random numbers. Counts used: 1, odd, prime,
/// more than one piece.
Values points(std::int64_t count) {
  Values x(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const double t = 2.0 * static_cast<double>(i) / static_cast<double>(count) - 1;
    x[i] = i % 3 == 0   ? 100 * t * t * t
           : i % 3 == 1 ? 8 * t
                        : normal_at(7, static_cast<std::uint64_t>(i));
  }
  return x;
}
constexpr std::int64_t sizes[] = {1, 7, 61, 16384, 40009};

TEST(Activation, ReferencesAgreeWithTheirDerivatives) {
  for (double x = -6; x <= 6; x += 0.37) {
    EXPECT_NEAR(gelu(x), gelu_by_tanh(x), 1e-15 * 6);
    // step^2 times a third derivative of about 1
    EXPECT_NEAR(gelu_slope(x), (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5, 1e-9);
    EXPECT_NEAR(exact_gelu_slope(x), (exact_gelu(x + 1e-5) - exact_gelu(x - 1e-5)) / 2e-5, 1e-9);
    EXPECT_NEAR(exact_gelu(x), gelu(x), 5e-4);
    EXPECT_NEAR(silu_slope(x), (silu(x + 1e-5) - silu(x - 1e-5)) / 2e-5, 1e-9);
  }
}

TEST(Activation, GeluKeepsItsRelativeErrorInBothTails) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t n : sizes) {
      SmallOpsFixture f;
      const Tensor x = f.make(dtype, {n}), y = f.make(dtype, {n});
      assign(x, points(n));
      ops::gelu_forward(f.context, x, y);
      Values expected, bounds;
      for (const double value : values(x)) {
        expected.push_back(gelu(value));
        const double relative = (10 + 5 * std::abs(gelu_argument(value))) * u +
                                (dtype != DType::float32 ? 1.01 * unit_roundoff(dtype) : 0);
        bounds.push_back(relative * std::abs(expected.back()) + underflow);
      }
      expect_within(y, expected, bounds, to_string(dtype));
    }
  }
}

TEST(Activation, GeluGradient) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t n : sizes) {
      SmallOpsFixture f;
      const Tensor x = f.make(dtype, {n}), dy = f.random(dtype, {n}, "dy"), dx = f.make(dtype, {n});
      assign(x, points(n));
      ops::gelu_backward(f.context, x, dy, dx);
      const Values at = values(x), gradient = values(dy);
      Values expected, bounds;
      for (std::int64_t i = 0; i < n; ++i) {
        const double v = gelu_argument(at[i]), first = sigmoid(v),
                     second = std::abs(at[i]) * slope(v) * gelu_argument_slope(at[i]);
        expected.push_back(gradient[i] * gelu_slope(at[i]));
        const double absolute =
            // v' is up to 1e4 where sigmoid' underflows.
            ((11 + 5 * std::abs(v)) * first + (22 + 5 * std::abs(v)) * second) * u + 1e-32;
        bounds.push_back(std::abs(gradient[i]) * absolute +
                         (dtype != DType::float32 ? 1.01 * unit_roundoff(dtype) : u) *
                             std::abs(expected[i]));
      }
      expect_within(dx, expected, bounds, to_string(dtype));
      ops::gelu_backward(f.context, x, dy, dy);
      expect_same_bytes(dy, dx, "in place");
    }
  }
}

TEST(Activation, SiluAndItsGradient) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t n : sizes) {
      SmallOpsFixture f;
      const Tensor x = f.make(dtype, {n}), dy = f.random(dtype, {n}, "dy"), y = f.make(dtype, {n}),
                   dx = f.make(dtype, {n});
      assign(x, points(n));
      ops::silu_forward(f.context, x, y);
      ops::silu_backward(f.context, x, dy, dx);
      const Values at = values(x), gradient = values(dy);
      Values expected, bounds, slopes, slope_bounds;
      const double rounding = dtype != DType::float32 ? 1.01 * unit_roundoff(dtype) : u;
      for (std::int64_t i = 0; i < n; ++i) {
        expected.push_back(silu(at[i]));
        // Where the sigmoid underflows, |x| is up to 88.
        bounds.push_back((10 * u + rounding) * std::abs(expected[i]) + 2 * underflow);
        slopes.push_back(gradient[i] * silu_slope(at[i]));
        slope_bounds.push_back(
            std::abs(gradient[i]) *
                ((11 * sigmoid(at[i]) + 17 * std::abs(at[i]) * slope(at[i])) * u + 2 * underflow) +
            rounding * std::abs(slopes[i]));
      }
      expect_within(y, expected, bounds, to_string(dtype));
      expect_within(dx, slopes, slope_bounds, to_string(dtype));
      ops::silu_backward(f.context, x, dy, dy);
      expect_same_bytes(dy, dx, "in place");
    }
  }
}

TEST(Activation, ExactGeluKeepsItsRelativeErrorInBothTails) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t n : sizes) {
      SmallOpsFixture f;
      const Tensor x = f.make(dtype, {n}), y = f.make(dtype, {n});
      assign(x, points(n));
      ops::gelu_forward(f.context, x, y, ops::Gelu::exact);
      Values expected, bounds;
      for (const double value : values(x)) {
        expected.push_back(exact_gelu(value));
        // For x > 0 the probability is at least 1/2, and that of -x has the error.
        const double smaller = std::erfc(std::abs(value) / std::sqrt(2)) / 2,
                     part = value < 0 ? 1 : smaller / (1 - smaller),
                     relative = (2 + part * (13 + value * value / 2)) * u +
                                (dtype != DType::float32 ? 1.01 * unit_roundoff(dtype) : 0);
        bounds.push_back(relative * std::abs(expected.back()) + underflow);
      }
      expect_within(y, expected, bounds, to_string(dtype));
    }
  }
}

TEST(Activation, ExactGeluGradient) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t n : sizes) {
      SmallOpsFixture f;
      const Tensor x = f.make(dtype, {n}), dy = f.random(dtype, {n}, "dy"), dx = f.make(dtype, {n});
      assign(x, points(n));
      ops::gelu_backward(f.context, x, dy, dx, ops::Gelu::exact);
      const Values at = values(x), gradient = values(dy);
      Values expected, bounds;
      for (std::int64_t i = 0; i < n; ++i) {
        const double square = at[i] * at[i], first = std::erfc(-at[i] / std::sqrt(2)) / 2,
                     second = std::abs(at[i]) * normal_density(at[i]);
        expected.push_back(gradient[i] * exact_gelu_slope(at[i]));
        const double absolute = ((15 + square / 2) * std::min(first, 1 - first) + 2 * first +
                                 (9 + square / 2) * second) *
                                    u +
                                100 * underflow;
        bounds.push_back(std::abs(gradient[i]) * absolute +
                         (dtype != DType::float32 ? 1.01 * unit_roundoff(dtype) : u) *
                             std::abs(expected[i]));
      }
      expect_within(dx, expected, bounds, to_string(dtype));
      ops::gelu_backward(f.context, x, dy, dy, ops::Gelu::exact);
      expect_same_bytes(dy, dx, "in place");
    }
  }
}

TEST(Activation, GeluFarOut) {
  for (const ops::Gelu form : {ops::Gelu::tanh, ops::Gelu::exact}) {
    SmallOpsFixture f;
    const Tensor x = f.make(DType::float32, {4}), y = f.make(DType::float32, {4});
    assign(x, {1e30, -1e30, std::nan(""), 0});
    ops::gelu_forward(f.context, x, y, form);
    EXPECT_EQ(value_at(y, 0), value_at(x, 0));
    EXPECT_EQ(value_at(y, 1), 0);
    EXPECT_TRUE(std::isnan(value_at(y, 2)));
    EXPECT_EQ(value_at(y, 3), 0);
  }
}

TEST(Activation, SwigluAndItsGradient) {
  for (const DType dtype : compute_types) {
    for (const auto& [rows, width] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 7}, {5, 61}, {7, 64}, {2, 5003}}) {
      SmallOpsFixture f;
      const Tensor x = f.make(dtype, {rows, 2 * width}), y = f.make(dtype, {rows, width});
      const Tensor dy = f.random(dtype, {rows, width}, "dy"), dx = f.make(dtype, x.shape);
      assign(x, points(x.elements()));
      const Values at = values(x), gradient = values(dy);
      ops::swiglu_forward(f.context, x, y);
      ops::swiglu_backward(f.context, x, dy, dx);
      const double rounding = dtype != DType::float32 ? 1.01 * unit_roundoff(dtype) : u;
      Values expected, bounds, expected_dx(at.size()), bounds_dx(at.size());
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t i = 0; i < width; ++i) {
          const std::int64_t gate = r * 2 * width + i, up = gate + width;
          const double g = at[gate], d = gradient[r * width + i];
          expected.push_back(silu(g) * at[up]);
          bounds.push_back((10 * u + rounding) * std::abs(expected.back()) + 100 * underflow);
          expected_dx[gate] = d * at[up] * silu_slope(g);
          // 11 roundings for the sigmoid and the operations after it, 16 for the second term, 1 for
          // d * up.
          bounds_dx[gate] =
              std::abs(d * at[up]) * u * (12 * sigmoid(g) + 17 * std::abs(g) * slope(g)) +
              rounding * std::abs(expected_dx[gate]) + 100 * underflow;
          expected_dx[up] = d * silu(g);
          bounds_dx[up] = (10 * u + rounding) * std::abs(expected_dx[up]) + 100 * underflow;
        }
      }
      expect_within(y, expected, bounds, "y " + to_string(dtype));
      expect_within(dx, expected_dx, bounds_dx, "dx " + to_string(dtype));
      ops::swiglu_backward(f.context, x, dy, x);
      expect_same_bytes(x, dx, "in place");
    }
  }
}

TEST(Activation, MetaCountsAsTheCpu) {
  SmallOpsFixture real, meta(DeviceKind::meta);
  for (OpsFixture* f : {&real, &meta}) {
    const Tensor wide = f->filled(DType::bfloat16, {3, 10}, 1),
                 wide_too = f->filled(DType::bfloat16, {3, 10}, 1),
                 narrow = f->filled(DType::bfloat16, {3, 5}, 1);
    ops::gelu_forward(f->context, wide, wide_too);
    ops::gelu_backward(f->context, wide, wide_too, wide_too);
    ops::swiglu_forward(f->context, wide, narrow);
    ops::swiglu_backward(f->context, wide, narrow, wide_too);
  }
  EXPECT_EQ(real.context.counters().bytes, meta.context.counters().bytes);
  EXPECT_EQ(meta.context.counters().calls, 4);
  EXPECT_EQ(real.workspace.peak_bytes(), 0);
}

}  // namespace
}  // namespace trireme::test
