// SPDX-License-Identifier: Apache-2.0
//
// Layer norm and RMS norm against a double-precision reference: values, gradients, widths of
// transformers, large means, in-place results, added gradients, number of threads, NaNs, and meta.
// The reference's gradients are checked against finite differences. Tolerances count the roundings
// of a lane and of the result.

#include "trireme/ops/row_norm.hpp"

#include "norm_reference.hpp"

namespace trireme::test {
namespace {

// unit roundoff of float32
constexpr double single = 0x1p-24;

/// Layer norm or RMS norm over the rows of x [rows, width] in double precision.
struct Reference {
  std::int64_t rows = 1, width = 1;
  bool rms = false;
  double epsilon = 1e-5;

  struct Row {
    double mean = 0, rstd = 0;
  };
  Row statistics(const Values& x, std::int64_t row) const {
    Row s;
    const auto n = static_cast<double>(width);
    for (std::int64_t i = 0; !rms && i < width; ++i) s.mean += x[row * width + i] / n;
    double variance = 0;
    for (std::int64_t i = 0; i < width; ++i)
      variance += std::pow(x[row * width + i] - s.mean, 2) / n;
    s.rstd = 1 / std::sqrt(variance + epsilon);
    return s;
  }
  Values forward(const Values& x, const Values& gamma, const Values& beta) const {
    Values y(x.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      const Row s = statistics(x, r);
      for (std::int64_t i = 0; i < width; ++i)
        y[r * width + i] = (x[r * width + i] - s.mean) * s.rstd * gamma[i] + beta[i];
    }
    return y;
  }
  struct Gradients {
    Values dx, dgamma, dbeta;
    /// sums of the terms' absolute values
    Values dgamma_terms, dbeta_terms;
    /// for each element of dx: sum of the absolute values of its terms
    Values dx_terms;
    /// for each element of dx: its sensitivity to an error of all normalized numbers
    Values dx_slopes;
    double largest_normal = 0;
  };
  Gradients backward(const Values& x, const Values& dy, const Values& gamma,
                     const Values& dresidual) const {
    Gradients g{Values(x.size()),   Values(width, 0.0), Values(width, 0.0), Values(width, 0.0),
                Values(width, 0.0), Values(x.size()),   Values(x.size())};
    for (std::int64_t r = 0; r < rows; ++r) {
      const Row s = statistics(x, r);
      Values normal(width);
      double level = 0, slope = 0, level_terms = 0, slope_terms = 0;
      for (std::int64_t i = 0; i < width; ++i) {
        const double d = dy[r * width + i];
        normal[i] = (x[r * width + i] - s.mean) * s.rstd;
        g.largest_normal = std::max(g.largest_normal, std::abs(normal[i]));
        g.dgamma[i] += d * normal[i];
        g.dbeta[i] += d;
        g.dgamma_terms[i] += std::abs(d * normal[i]);
        g.dbeta_terms[i] += std::abs(d);
        const double share = d * gamma[i] / static_cast<double>(width);
        level += rms ? 0 : share;
        slope += share * normal[i];
        level_terms += std::abs(share);
        slope_terms += std::abs(share * normal[i]);
      }
      for (std::int64_t i = 0; i < width; ++i) {
        const double own = dy[r * width + i] * gamma[i], around = dresidual[r * width + i];
        g.dx[r * width + i] = s.rstd * (own - level - normal[i] * slope) + around;
        g.dx_terms[r * width + i] =
            s.rstd * (std::abs(own) + level_terms + std::abs(normal[i]) * slope_terms) +
            std::abs(around);
        g.dx_slopes[r * width + i] = s.rstd * (slope_terms + std::abs(normal[i]) * level_terms);
      }
    }
    return g;
  }
};

struct Case {
  std::int64_t rows, width;
  bool rms, bias, residual;
  DType dtype;
  /// mean of x over its standard deviation
  double offset = 0;
  double epsilon = 1e-5;
};

/// All tensors of one norm, forward and backward.
struct RowNormFixture {
  explicit RowNormFixture(const Case& c, DeviceKind kind = tested_device())
      : fixture(kind),
        op{c.rows, c.width, c.rms, c.dtype, c.epsilon},
        x(activation("x")),
        y(activation("y")),
        dy(activation("dy")),
        dx(activation("dx")),
        gamma(fixture.random(DType::float32, {c.width}, "gamma")),
        mean(c.rms ? Tensor{} : fixture.make(DType::float32, {c.rows})),
        rstd(fixture.make(DType::float32, {c.rows})),
        dgamma(fixture.make(DType::float32, {c.width})) {
    if (c.bias) beta = fixture.random(DType::float32, {c.width}, "beta");
    if (c.bias) dbeta = fixture.make(DType::float32, {c.width});
    if (c.residual) dresidual = activation("dresidual");
    if (c.offset == 0) return;
    Values moved = values(x);
    for (double& value : moved) value += c.offset;
    assign(x, moved);
  }
  Tensor activation(std::string_view name) {
    return fixture.random(op.dtype, {op.rows, op.width}, name);
  }
  void forward(const Tensor& to_y) {
    ops::row_norm_forward(fixture.context, op, x, gamma, beta, to_y, mean, rstd);
  }
  void backward(const Tensor& from_dy, const Tensor& to_dx, ops::Write write = ops::Write::assign) {
    ops::row_norm_backward(fixture.context, op, x, from_dy, gamma, mean, rstd, dresidual, to_dx,
                           dgamma, dbeta, write);
  }
  void run() {
    forward(y);
    backward(dy, dx);
  }

  SmallOpsFixture fixture;
  ops::RowNorm op;
  Tensor x, y, dy, dx, gamma, mean, rstd, dgamma, beta, dbeta, dresidual;
};

Values values_or_zeros(const Tensor& t, std::int64_t count) {
  return t.defined() ? values(t) : Values(static_cast<std::size_t>(count), 0.0);
}

void compare(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows, width " << c.width << ", rms " << c.rms
                                  << ", bias " << c.bias << ", residual " << c.residual << ", "
                                  << to_string(c.dtype) << ", offset " << c.offset << ", epsilon "
                                  << c.epsilon);
  RowNormFixture p(c);
  p.run();
  const Reference norm{c.rows, c.width, c.rms, c.epsilon};
  const Values x = values(p.x), gamma = values(p.gamma), beta = values_or_zeros(p.beta, c.width);
  Values mean, rstd;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    mean.push_back(norm.statistics(x, r).mean);
    rstd.push_back(norm.statistics(x, r).rstd);
  }
  // A lane adds every 16th number of a block of 1024; the blocks are added in double. The terms
  // themselves and the result add a few roundings.
  const double roundings = static_cast<double>(std::min<std::int64_t>(64, c.width / 16 + 1)) + 4;
  // x| is 1 + offset on average.
  const double mean_error = roundings * single * (1 + c.offset);
  if (!c.rms) expect_close(p.mean, mean, mean_error, 0, "mean");
  // A wrong mean has a second-order effect.
  expect_close(p.rstd, rstd, 0, roundings * single + mean_error * mean_error, "rstd");
  const auto g =
      norm.backward(x, values(p.dy), gamma, values_or_zeros(p.dresidual, p.x.elements()));
  // 1.01: the rounded value itself is slightly off.
  const double rounding = unit_roundoff(c.dtype) * 1.01;
  const double normal_error =
      // error of a normalized number
      mean_error * largest(rstd) + (roundings + 3) * single * g.largest_normal;
  expect_close(p.y, norm.forward(x, gamma, beta),
               (normal_error + single * g.largest_normal) * largest(gamma) + single * largest(beta),
               rounding, "y");
  Values dx_bounds(g.dx.size());
  for (std::size_t i = 0; i < g.dx.size(); ++i) {
    // 2: of the sums, and of rstd
    dx_bounds[i] = 2 * roundings * single * g.dx_terms[i] + normal_error * g.dx_slopes[i] +
                   rounding * std::abs(g.dx[i]);
  }
  expect_within(p.dx, g.dx, dx_bounds, "dx");
  Values terms = g.dgamma_terms;
  for (std::int64_t i = 0; i < c.width; ++i) terms[i] += g.dbeta_terms[i];
  expect_sums_close(p.dgamma, g.dgamma, terms, normal_error);
  if (c.bias) expect_sums_close(p.dbeta, g.dbeta, g.dbeta_terms);
}

TEST(RowNorm, ReferenceIsItsOwnDerivative) {
  const auto numbers = [](std::int64_t count, std::string_view name) {
    Values v(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      v[i] = normal_at(random_key(1, name), static_cast<std::uint64_t>(i));
    return v;
  };
  for (const bool rms : {false, true}) {
    const Reference norm{3, 7, rms, 0.01};
    const Values x = numbers(21, "x"), dy = numbers(21, "dy"), gamma = numbers(7, "gamma"),
                 beta = numbers(7, "beta");
    const auto g = norm.backward(x, dy, gamma, Values(21, 0.0));
    // Central differences: the truncation error is step^2 times a third derivative (small powers of
    // rstd ~ 1), the rounding error 1e-16 / step.
    const auto check = [&](const Values& at, const Values& gradient, auto loss) {
      for (std::size_t i = 0; i < at.size(); ++i) {
        Values direction(at.size(), 0.0);
        direction[i] = 1;
        EXPECT_NEAR(gradient[i], directional_derivative(loss, at, direction),
                    1e-7 * (1 + largest(gradient)));
      }
    };
    check(x, g.dx, [&](const Values& v) { return dot(norm.forward(v, gamma, beta), dy); });
    check(gamma, g.dgamma, [&](const Values& v) { return dot(norm.forward(x, v, beta), dy); });
    check(beta, g.dbeta, [&](const Values& v) { return dot(norm.forward(x, gamma, v), dy); });
  }
}

TEST(RowNorm, EqualsReference) {
  for (const DType dtype : compute_types) {
    for (const bool rms : {false, true}) {
      for (const bool bias : {false, true}) {
        for (const bool residual : {false, true}) {
          for (const auto& [rows, width] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                            {2, 3},
                                            {33, 17},
                                            {131, 64},
                                            {61, 131},
                                            {7, 1021}}) {
            compare({rows, width, rms, bias, residual, dtype});
          }
        }
      }
    }
  }
}

/// Widths of whole packs that a device's threads hold or (in tests, with small teams) read again,
/// and row counts that do and do not fill its steps.
TEST(RowNorm, WidthsOfTransformers) {
  for (const DType dtype : compute_types) {
    for (const auto& [rows, width] : {std::pair<std::int64_t, std::int64_t>{9, 8},
                                      {10, 16},
                                      {11, 24},
                                      {12, 32},
                                      {13, 48},
                                      {1029, 40},
                                      {21, 768},
                                      {6, 1600}}) {
      compare({rows, width, false, true, true, dtype});
      compare({rows, width, true, false, false, dtype});
    }
  }
}

TEST(RowNorm, WideRowsAndManyRows) {
  compare({5, 5003, false, true, true, DType::float32});
  compare({5, 5003, true, false, true, DType::bfloat16});
  compare({3001, 16, false, true, false, DType::float32});
}

TEST(RowNorm, EpsilonIsThatOfTheOp) {
  for (const DType dtype : compute_types) {
    for (const bool rms : {false, true}) {
      for (const double epsilon : {1e-12, 1e-6, 0.1}) {
        compare({61, 131, rms, !rms, true, dtype, 0, epsilon});
        compare({13, 48, rms, !rms, false, dtype, 0, epsilon});
      }
    }
  }
}

TEST(RowNorm, ALargeMeanCostsNoDigitsOfTheVariance) {
  compare({37, 1031, false, true, false, DType::float32, 30});
  RowNormFixture p({3, 256, false, true, false, DType::float32, 1000});
  p.run();
  const Values x = values(p.x);
  for (std::int64_t r = 0; r < 3; ++r) {
    const double rstd = Reference{3, 256, false}.statistics(x, r).rstd;
    // E[x^2] - E[x]^2 in float32 would be off by 1e6 * 2^-24 = 6 %.
    EXPECT_NEAR(value_at(p.rstd, r), rstd, 1e-5 * rstd);
  }
}

TEST(RowNorm, ResultsMayLieOnOperands) {
  for (const DType dtype : compute_types) {
    for (const bool rms : {false, true}) {
      RowNormFixture p({67, 129, rms, true, true, dtype});
      p.run();
      const Values dgamma = values(p.dgamma);
      const Tensor on_dy = p.fixture.copy_of(p.dy);
      p.backward(on_dy, on_dy);
      expect_same_bytes(on_dy, p.dx, "dx on dy");
      EXPECT_EQ(values(p.dgamma), dgamma);
      p.backward(p.dy, p.dresidual);
      expect_same_bytes(p.dresidual, p.dx, "dx on dresidual");
      EXPECT_EQ(values(p.dgamma), dgamma);
      p.forward(p.x);
      expect_same_bytes(p.x, p.y, "y on x");
    }
  }
}

TEST(RowNorm, ParameterGradientsAreAdded) {
  RowNormFixture p({101, 37, false, true, false, DType::float32});
  p.run();
  const Values dgamma = values(p.dgamma), dbeta = values(p.dbeta);
  p.backward(p.dy, p.dx, ops::Write::add);
  for (std::int64_t i = 0; i < 37; ++i) {
    EXPECT_EQ(value_at(p.dgamma, i), 2 * dgamma[i]);
    EXPECT_EQ(value_at(p.dbeta, i), 2 * dbeta[i]);
  }
}

TEST(RowNorm, SameBitsOnAnyNumberOfThreads) {
  const Case c{1003, 67, false, true, true, DType::float32};
  RowNormFixture many(c), one(c);
  many.run();
  on_one_thread([&] { one.run(); });
  expect_same_bytes(many.y, one.y, "y");
  expect_same_bytes(many.dx, one.dx, "dx");
  expect_same_bytes(many.dgamma, one.dgamma, "dgamma");
  expect_same_bytes(many.dbeta, one.dbeta, "dbeta");
}

TEST(RowNorm, ANaNStaysInItsRow) {
  RowNormFixture p({3, 50, true, false, false, DType::float32});
  set_value(p.x, 60, std::nan(""));
  p.forward(p.y);
  EXPECT_TRUE(std::isnan(value_at(p.y, 99)));
  EXPECT_FALSE(std::isnan(value_at(p.y, 49)));
  EXPECT_FALSE(std::isnan(value_at(p.y, 100)));
}

TEST(RowNorm, MetaTakesTheSameWorkspaceAndCountsTheSame) {
  const Case c{503, 48, false, true, true, DType::bfloat16};
  RowNormFixture real(c), meta(c, DeviceKind::meta);
  real.run();
  meta.run();
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), meta.fixture.workspace.peak_bytes());
  EXPECT_GT(meta.fixture.workspace.peak_bytes(), 0);
  EXPECT_EQ(meta.fixture.workspace.used_bytes(), 0);
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_EQ(meta.fixture.context.counters().calls, 2);
}

}  // namespace
}  // namespace trireme::test
