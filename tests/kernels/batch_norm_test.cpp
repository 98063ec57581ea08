// SPDX-License-Identifier: Apache-2.0
//
// Batch norm against tests/kernels/norm_reference.hpp: forward, backward, packs and unaligned
// tensors, ReLU masks, large means, statistics from a convolution's sums, running statistics,
// in-place results, NaNs, number of threads, and meta.
// Tolerances count roundings: a float32 lane adds up to 70 numbers; the rest is in double.

#include "trireme/ops/normalization.hpp"

#include <map>
#include <memory>

#include "norm_reference.hpp"

namespace trireme::test {
namespace {

struct Case {
  std::int64_t rows, channels;
  bool relu, add;
  DType dtype;
  /// mean of x over its standard deviation
  double offset = 0;
};

/// All tensors of one batch norm, forward and backward.
struct BatchNormFixture {
  explicit BatchNormFixture(const Case& c, DeviceKind kind = tested_device())
      : fixture(kind),
        op{c.rows, c.channels, c.relu, c.add, c.dtype},
        x(fixture.random(c.dtype, {c.rows, c.channels}, "x")),
        residual(fixture.random(c.dtype, x.shape, "residual")),
        y(fixture.make(c.dtype, x.shape)),
        dy(fixture.random(c.dtype, x.shape, "dy")),
        dx(fixture.make(c.dtype, x.shape)),
        dresidual(fixture.make(c.dtype, x.shape)),
        gamma(fixture.random(DType::float32, {c.channels}, "gamma")),
        beta(fixture.random(DType::float32, {c.channels}, "beta")),
        mean(parameter()),
        rstd(parameter()),
        variance(parameter()),
        dgamma(parameter()),
        dbeta(parameter()),
        running{parameter(), parameter(), 0.25f} {
    if (const std::int64_t elements = ops::batch_norm_mask_elements(fixture.context, op);
        elements > 0)
      mask = fixture.make(DType::uint8, {elements});
    if (c.offset == 0) return;
    Values moved = values(x);
    for (double& value : moved) value += c.offset;
    assign(x, moved);
  }
  Tensor parameter() { return fixture.make(DType::float32, {op.channels}); }

  ops::BatchStatistics statistics() const { return {mean, rstd, variance}; }
  void forward() {
    ops::batch_norm_statistics(fixture.context, op, x, statistics());
    ops::batch_norm_apply(fixture.context, op, x, gamma, beta, residual, y, statistics(), mask);
  }
  void backward(const Tensor& to_dx, const Tensor& to_dresidual,
                ops::Write write = ops::Write::assign) {
    ops::batch_norm_backward(fixture.context, op, x, y, dy, gamma, beta, statistics(), to_dx,
                             to_dresidual, dgamma, dbeta, running, mask, write);
  }
  void backward() { backward(dx, dresidual); }

  OpsFixture fixture;
  ops::BatchNorm op;
  Tensor x, residual, y, dy, dx, dresidual, gamma, beta, mean, rstd, variance, dgamma, dbeta, mask;
  ops::RunningStatistics running;
};

NormReference reference(const Case& c) {
  return {1, c.rows, c.channels, c.channels, c.relu, c.add};
}

void compare(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.channels << " channels, relu "
                                  << c.relu << ", add " << c.add << ", " << to_string(c.dtype)
                                  << ", offset " << c.offset);
  BatchNormFixture p(c);
  p.forward();
  p.backward();
  const NormReference norm = reference(c);
  const Values x = values(p.x), gamma = values(p.gamma), beta = values(p.beta);
  const auto s = norm.statistics(x);
  // `mean` is stored as float32: half a unit in its last place, in standard deviations.
  const double single = 0x1p-24, mean_error = 2 * single * c.offset;
  const double rounding = 2 * unit_roundoff(c.dtype);
  // A lane adds up to 70 numbers.
  expect_close(p.mean, s.mean, 32 * single, single, "mean");
  Values rstd, unbiased;
  for (const double v : s.variance) {
    rstd.push_back(1 / std::sqrt(v + norm.epsilon));
    unbiased.push_back(
        c.rows > 1 ? v * static_cast<double>(c.rows) / static_cast<double>(c.rows - 1) : v);
  }
  // Relative bound: a lane's sum of squares is at most 1 + 70 times its own M2, with 70 roundings;
  // a twentieth of that counts on average.
  expect_close(p.rstd, rstd, 1e-30, 64 * single, "rstd");
  expect_close(p.variance, unbiased, 1e-12, 128 * single, "variance");
  const Values y = norm.forward(x, gamma, beta, values(p.residual), s);
  const double y_scale = largest(y);
  expect_close(p.y, y, 64 * single * (1 + y_scale) + 4 * mean_error, rounding, "y");
  const auto g = norm.backward(x, values(p.y), values(p.dy), gamma);
  expect_close(p.dx, g.dx,
               (128 * single + 8 * mean_error) *
                   (largest(g.dx) + largest(rstd) * largest(gamma) * largest(values(p.dy))),
               rounding, "dx");
  if (c.add) expect_close(p.dresidual, g.dresidual, 0, 0, "dresidual");
  expect_sums_close(p.dbeta, g.dbeta, g.dbeta_terms);
  Values terms = g.dgamma_terms;
  for (std::int64_t i = 0; i < c.channels; ++i)
    // A wrong mean or rstd shifts each term.
    terms[i] += g.dbeta_terms[i];
  expect_sums_close(p.dgamma, g.dgamma, terms, mean_error);
}

TEST(BatchNorm, ReferenceIsItsOwnDerivative) {
  for (const bool relu : {false, true}) {
    for (const bool add : {false, true}) expect_reference_gradients({1, 7, 3, 3, relu, add});
  }
}

TEST(BatchNorm, EqualsReference) {
  for (const DType dtype : compute_types) {
    for (const bool relu : {false, true}) {
      for (const bool add : {false, true}) {
        for (const auto& [rows, channels] : {std::pair<std::int64_t, std::int64_t>{2, 1},
                                             {3, 5},
                                             {131, 3},
                                             {997, 16},
                                             {257, 33},
                                             {61, 64},
                                             {67, 521}}) {
          compare({rows, channels, relu, add, dtype});
        }
      }
    }
  }
}

TEST(BatchNorm, ChannelsInPacks) {
  for (const DType dtype : compute_types) {
    for (const bool relu : {false, true}) {
      for (const bool add : {false, true}) {
        for (const auto& [rows, channels] : {std::pair<std::int64_t, std::int64_t>{2311, 24},
                                             {1100, 64},
                                             {197, 264},
                                             {301, 1024}}) {
          compare({rows, channels, relu, add, dtype});
        }
      }
    }
  }
}

TEST(BatchNorm, TensorsMayBeginAnywhere) {
  for (const DType dtype : compute_types) {
    for (const bool add : {false, true}) {
      const Case c{301, 16, true, add, dtype};
      BatchNormFixture aligned(c), p(c);
      const auto moved = [&](Tensor& t) {
        const Tensor place =
            p.fixture.make(dtype, {t.elements() + 1}).rows(1, t.elements() + 1).reshaped(t.shape);
        copy_values(t, place);
        t = place;
      };
      for (Tensor* t : {&p.x, &p.residual, &p.y, &p.dy, &p.dx, &p.dresidual}) moved(*t);
      p.mask = aligned.mask = {};
      for (BatchNormFixture* each : {&aligned, &p}) {
        each->forward();
        each->backward();
      }
      // Both results are within compare()'s tolerance of the exact sums; here parts of the sums are
      // taken in another order.
      const double error = 64 * 0x1p-24, rounding = 2 * unit_roundoff(dtype);
      expect_close(p.y, values(aligned.y), error * (1 + largest(values(aligned.y))), rounding, "y");
      expect_close(p.dx, values(aligned.dx), 4 * error * (1 + largest(values(aligned.dx))),
                   rounding, "dx");
      if (add) expect_close(p.dresidual, values(aligned.dresidual), 0, 0, "dresidual");
    }
  }
}

TEST(BatchNorm, BackwardBehindAMaskDoesNotReadY) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t channels : {8, 24, 264}) {
      BatchNormFixture p({517, channels, true, true, dtype}),
          reads({517, channels, true, true, dtype});
      reads.mask = {};
      p.forward();
      reads.forward();
      if (p.mask.defined())
        // Without a mask, backward reads y.
        assign(p.y, Values(static_cast<std::size_t>(p.y.elements()), 0.0));
      p.backward();
      reads.backward();
      expect_same_bytes(p.dresidual, reads.dresidual, "dresidual");
      expect_same_bytes(p.dx, reads.dx, "dx");
      expect_same_bytes(p.dgamma, reads.dgamma, "dgamma");
      expect_same_bytes(p.dbeta, reads.dbeta, "dbeta");
    }
  }
}

/// Masks are for devices: the host reads y as fast.
TEST(BatchNorm, MasksAreABitAnElementWhereNeeded) {
  OpsFixture fixture(DeviceKind::meta);
  const auto elements = [&](DeviceKind target, const ops::BatchNorm& op) {
    ops::Context context(fixture.context.stream(), fixture.workspace, fixture.workspace, target);
    return ops::batch_norm_mask_elements(context, op);
  };
  EXPECT_EQ(elements(DeviceKind::cuda, {100, 64, true, true, DType::bfloat16}), 100 * 64 / 8);
  EXPECT_EQ(elements(DeviceKind::cuda, {100, 64, true, true, DType::float32}),
            // half of each byte
            100 * 64 / 4);
  // no packs
  EXPECT_EQ(elements(DeviceKind::cuda, {100, 60, true, true, DType::bfloat16}), 0);
  // Recomputed from x.
  EXPECT_EQ(elements(DeviceKind::cuda, {100, 64, true, false, DType::bfloat16}), 0);
  EXPECT_EQ(elements(DeviceKind::cuda, {100, 64, false, true, DType::bfloat16}), 0);
}

TEST(BatchNorm, ManyChunksAndAOneWideTensor) {
  compare({20011, 16, true, true, DType::float32});
  compare({40009, 1, true, false, DType::float32});
  compare({1201, 64, true, false, DType::bfloat16});
  compare({211, 1031, false, true, DType::float32});
}

TEST(BatchNorm, ALargeMeanCostsNoDigitsOfTheVariance) {
  for (const std::int64_t channels : {1, 16, 67, 300})
    compare({2003, channels, false, false, DType::float32, 100});
  compare({2003, 16, false, false, DType::float32, 1000});
}

/// Returns the sums of x and of its squares, each rounded to float32 once and then multiplied by
/// `factor`.
Tensor channel_sums(BatchNormFixture& p, double factor = 1) {
  const Tensor sums = p.fixture.make(DType::float32, {2, p.op.channels});
  const Values x = values(p.x);
  Values totals(static_cast<std::size_t>(2 * p.op.channels), 0.0);
  for (std::int64_t i = 0; i < p.x.elements(); ++i) {
    totals[i % p.op.channels] += x[i] * factor;
    totals[p.op.channels + i % p.op.channels] += x[i] * x[i] * factor;
  }
  assign(sums, totals);
  return sums;
}

/// In a 16-bit type, and in float32, where no offset rounds x to a few values.
TEST(BatchNorm, StatisticsOfSums) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const double offset : {0.0, 3.0, 5.0, 8.0, 100.0, 1000.0}) {
      for (const auto& [rows, channels] :
           {std::pair<std::int64_t, std::int64_t>{1, 4}, {2, 1}, {131, 3}, {997, 16}, {301, 264}}) {
        SCOPED_TRACE(testing::Message() << rows << " rows, " << channels << " channels, "
                                        << to_string(dtype) << ", offset " << offset);
        BatchNormFixture p({rows, channels, false, false, dtype, offset});
        const Tensor sums = channel_sums(p);
        ops::batch_norm_statistics_of_sums(p.fixture.context, p.op, p.x, sums, p.statistics());
        expect_close(sums, Values(static_cast<std::size_t>(2 * channels), 0.0), 0, 0, "sums");
        const auto s = reference({rows, channels, false, false, dtype}).statistics(values(p.x));
        Values rstd, unbiased;
        for (const double v : s.variance) {
          rstd.push_back(1 / std::sqrt(v + 1e-5));
          unbiased.push_back(
              rows > 1 ? v * static_cast<double>(rows) / static_cast<double>(rows - 1) : v);
        }
        // The sums have a relative error e = 2^-24. They are used if mean square / (variance +
        // epsilon) is at most 32 (kernels/norm/norm_of_sums.cpp).
        // So the variance is off by at most 3 e * 32 (variance + epsilon), and rstd by half of
        // that, plus the rounding of the result.
        const double e = 0x1p-24, of_variance = 3 * 32 * e;
        expect_close(p.mean, s.mean, 0, 2 * e, "mean");
        expect_close(p.rstd, rstd, 0, of_variance / 2 + e, "rstd");
        // n / (n - 1) is at most 2.
        expect_close(p.variance, unbiased, of_variance * 2e-5, of_variance + e, "variance");
      }
    }
  }
}

/// Sums that belong to other numbers reveal which channels are read again.
TEST(BatchNorm, OnlyASmallVarianceIsNotTakenOfSums) {
  for (const double offset : {0.0, 4.0, 8.0, 50.0}) {
    BatchNormFixture p({2003, 24, false, false, DType::bfloat16, offset}),
        exact({2003, 24, false, false, DType::bfloat16, offset});
    // A factor on both sums: visible in the mean, with little effect on the variance.
    const double factor = 1 + 0x1p-10;
    ops::batch_norm_statistics_of_sums(p.fixture.context, p.op, p.x, channel_sums(p, factor),
                                       p.statistics());
    ops::batch_norm_statistics(exact.fixture.context, exact.op, exact.x, exact.statistics());
    // in standard deviations; the limit is 5.5
    const bool again = offset > 6;
    Values mean = values(exact.mean);
    for (double& m : mean) m *= again ? 1 : factor;
    expect_close(p.mean, mean, 1e-6, 2e-7, again ? "read again" : "of the sums");
  }
  BatchNormFixture p({64, 4, false, false, DType::bfloat16});
  const Tensor sums = channel_sums(p);
  set_value(p.x, 5, std::nan(""));
  ops::batch_norm_statistics_of_sums(p.fixture.context, p.op, p.x, sums, p.statistics());
  // The sums suffice for this channel.
  EXPECT_FALSE(std::isnan(value_at(p.rstd, 1)));
  ops::batch_norm_statistics_of_sums(p.fixture.context, p.op, p.x, channel_sums(p), p.statistics());
  EXPECT_TRUE(std::isnan(value_at(p.rstd, 1)));
  EXPECT_FALSE(std::isnan(value_at(p.rstd, 2)));
}

TEST(BatchNorm, OneRowAndConstantChannels) {
  Case c{1, 3, false, false, DType::float32};
  BatchNormFixture p(c);
  p.forward();
  p.backward();
  expect_close(p.y, values(p.beta), 1e-6, 0, "one row is its own mean");
  expect_close(p.variance, Values(3, 0.0), 0, 0, "variance of one row");
  // rstd = 1/sqrt(1e-5) = 316 times the roundings of dy - dy
  expect_close(p.dx, Values(3, 0.0), 1e-4, 0, "dx");
}

TEST(BatchNorm, ParameterGradientsAreAdded) {
  const Case c{101, 7, true, false, DType::float32};
  BatchNormFixture p(c);
  p.forward();
  p.backward();
  const Values dgamma = values(p.dgamma), dbeta = values(p.dbeta);
  for (std::int64_t i = 0; i < c.channels; ++i) {
    EXPECT_EQ(value_at(p.running.mean, i), 0.25 * value_at(p.mean, i));
    EXPECT_EQ(value_at(p.running.variance, i), 0.25 * value_at(p.variance, i));
  }
  p.backward(p.dx, p.dresidual, ops::Write::add);
  for (std::int64_t i = 0; i < c.channels; ++i) {
    EXPECT_EQ(value_at(p.dgamma, i), 2 * dgamma[i]);
    EXPECT_EQ(value_at(p.dbeta, i), 2 * dbeta[i]);
    EXPECT_EQ(value_at(p.running.mean, i), 0.5 * value_at(p.mean, i));
    EXPECT_EQ(value_at(p.running.variance, i), 0.5 * value_at(p.variance, i));
  }
}

TEST(BatchNorm, ResultsMayLieOnDy) {
  for (const DType dtype : compute_types) {
    for (const bool relu : {false, true}) {
      for (const bool add : {false, true}) {
        BatchNormFixture p({613, 16, relu, add, dtype});
        p.forward();
        p.backward();
        const Tensor dy = p.fixture.copy_of(p.dy), other = p.fixture.make(dtype, p.x.shape);
        p.backward(p.dy, other);
        expect_same_bytes(p.dy, p.dx, "dx on dy");
        if (!add) continue;
        expect_same_bytes(other, p.dresidual, "dresidual beside it");
        copy_values(dy, p.dy);
        p.backward(other, p.dy);
        expect_same_bytes(p.dy, p.dresidual, "dresidual on dy");
        expect_same_bytes(other, p.dx, "dx beside it");
      }
    }
  }
}

TEST(BatchNorm, InferenceUsesTheRunningStatistics) {
  for (const DType dtype : compute_types) {
    const Case c{103, 19, true, true, dtype};
    BatchNormFixture p(c);
    const Tensor mean = p.fixture.random(DType::float32, {c.channels}, "running mean"),
                 variance = p.fixture.filled(DType::float32, {c.channels}, 2.25);
    ops::batch_norm_inference(p.fixture.context, p.op, p.x, p.gamma, p.beta, p.residual, mean,
                              variance, p.y);
    const Values y = reference(c).forward(values(p.x), values(p.gamma), values(p.beta),
                                          values(p.residual), {values(mean), values(variance)});
    expect_close(p.y, y, 16 * 0x1p-24 * largest(y), 2 * unit_roundoff(dtype));
  }
}

/// Ranks of a group in one process. A gather needs the rows of all ranks, so everything runs twice:
/// first each rank's rows are recorded, then every gather returns them.
struct RecordedGroup {
  /// Returns the group as rank `rank` sees it.
  ops::BatchGroup of_rank(int rank, int size) {
    return {.rank = rank, .size = size, .gather = [this, rank](const Tensor& all) {
              std::vector<Values>& known = rows[all.dtype];
              known.resize(static_cast<std::size_t>(all.shape[0]));
              known[static_cast<std::size_t>(rank)] = values(all.rows(rank, rank + 1));
              for (int other = 0; is_complete && other < all.shape[0]; ++other)
                assign(all.rows(other, other + 1), known[static_cast<std::size_t>(other)]);
            }};
  }
  bool is_complete = false;
  /// By type: float32 in forward, float64 in backward.
  std::map<DType, std::vector<Values>> rows;
};

/// Runs forward and backward of the batch norm on `ranks` equal parts of the rows.
std::vector<std::unique_ptr<BatchNormFixture>> run_in_parts(const Case& whole, int ranks,
                                                            const BatchNormFixture& tensors) {
  const std::int64_t rows = whole.rows / ranks;
  Case part = whole;
  part.rows = rows;
  std::vector<std::unique_ptr<BatchNormFixture>> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    BatchNormFixture& p = *parts.emplace_back(std::make_unique<BatchNormFixture>(part));
    const auto take = [&](const Tensor& from, const Tensor& to) {
      assign(to, values(from.rows(rank * rows, (rank + 1) * rows)));
    };
    take(tensors.x, p.x);
    take(tensors.residual, p.residual);
    take(tensors.dy, p.dy);
  }
  RecordedGroup group;
  const auto join = [&](int rank) {
    BatchNormFixture& p = *parts[static_cast<std::size_t>(rank)];
    const std::int64_t channels = whole.channels;
    const Tensor all = p.fixture.make(DType::float32, {ranks, 2 * channels}),
                 own = all.rows(rank, rank + 1).reshaped({2 * channels});
    ops::batch_norm_statistics(p.fixture.context, p.op, p.x,
                               {own.rows(0, channels), p.rstd, own.rows(channels, 2 * channels)});
    ops::batch_norm_join(p.fixture.context, p.op, group.of_rank(rank, ranks), all, p.statistics());
  };
  const auto backward = [&](int rank) {
    BatchNormFixture& p = *parts[static_cast<std::size_t>(rank)];
    ops::batch_norm_backward(p.fixture.context, p.op, p.x, p.y, p.dy, p.gamma, p.beta,
                             p.statistics(), p.dx, p.dresidual, p.dgamma, p.dbeta, p.running,
                             p.mask, ops::Write::assign, group.of_rank(rank, ranks));
  };
  for (group.is_complete = false;; group.is_complete = true) {
    for (int rank = 0; rank < ranks; ++rank) join(rank);
    if (group.is_complete) break;
  }
  for (const auto& p : parts)
    ops::batch_norm_apply(p->fixture.context, p->op, p->x, p->gamma, p->beta, p->residual, p->y,
                          p->statistics(), p->mask);
  for (group.is_complete = false;; group.is_complete = true) {
    for (int rank = 0; rank < ranks; ++rank) backward(rank);
    if (group.is_complete) break;
  }
  return parts;
}

/// Compares with the reference for all rows, with the tolerances of compare().
void compare_in_parts(const Case& c, int ranks) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, " << c.rows << " rows, " << c.channels
                                  << " channels, relu " << c.relu << ", add " << c.add << ", "
                                  << to_string(c.dtype) << ", offset " << c.offset);
  const BatchNormFixture all(c);
  const auto parts = run_in_parts(c, ranks, all);
  const auto joined = [&](Tensor BatchNormFixture::* tensor) {
    Values rows;
    for (const auto& p : parts)
      for (const double value : values((*p).*tensor)) rows.push_back(value);
    return rows;
  };
  const NormReference norm = reference(c);
  const Values x = values(all.x), gamma = values(all.gamma);
  const auto s = norm.statistics(x);
  Values rstd, unbiased;
  for (const double v : s.variance) {
    rstd.push_back(1 / std::sqrt(v + norm.epsilon));
    unbiased.push_back(v * static_cast<double>(c.rows) / static_cast<double>(c.rows - 1));
  }
  const double single = 0x1p-24, mean_error = 2 * single * c.offset;
  const double rounding = 2 * unit_roundoff(c.dtype);
  // The means of the parts are float32, so the distance of two, which is below one standard
  // deviation, is off by `mean_error`, and its square by less than twice that.
  for (const auto& p : parts) {
    expect_close(p->mean, s.mean, 32 * single + mean_error, single, "mean");
    expect_close(p->rstd, rstd, 1e-30, 64 * single + mean_error, "rstd");
    expect_close(p->variance, unbiased, 1e-12, 128 * single + 2 * mean_error, "variance");
    expect_same_bytes(p->mean, parts[0]->mean, "mean of all ranks");
    expect_same_bytes(p->rstd, parts[0]->rstd, "rstd of all ranks");
    expect_same_bytes(p->running.variance, parts[0]->running.variance, "variance of all ranks");
    for (std::int64_t i = 0; i < c.channels; ++i)
      EXPECT_EQ(value_at(p->running.mean, i), 0.25 * value_at(p->mean, i));
  }
  const Values y = norm.forward(x, gamma, values(all.beta), values(all.residual), s);
  assign(all.y, joined(&BatchNormFixture::y));
  expect_close(all.y, y, 64 * single * (1 + largest(y)) + 4 * mean_error, rounding, "y");
  const auto g = norm.backward(x, values(all.y), values(all.dy), gamma);
  assign(all.dx, joined(&BatchNormFixture::dx));
  expect_close(all.dx, g.dx,
               (128 * single + 8 * mean_error) *
                   (largest(g.dx) + largest(rstd) * largest(gamma) * largest(values(all.dy))),
               rounding, "dx");
  if (c.add) {
    assign(all.dresidual, joined(&BatchNormFixture::dresidual));
    expect_close(all.dresidual, g.dresidual, 0, 0, "dresidual");
  }
  // Each rank has the gradient of its rows; data ranks add them as all gradients.
  for (const auto& [part, total] : {std::pair(&BatchNormFixture::dgamma, all.dgamma),
                                    std::pair(&BatchNormFixture::dbeta, all.dbeta)}) {
    Values sums(static_cast<std::size_t>(c.channels), 0.0);
    for (const auto& p : parts) {
      const Values own = values((*p).*part);
      for (std::size_t i = 0; i < own.size(); ++i) sums[i] += own[i];
    }
    assign(total, sums);
  }
  // Each part is rounded to float32 once more.
  Values terms = g.dgamma_terms;
  for (std::int64_t i = 0; i < c.channels; ++i) terms[i] += g.dbeta_terms[i];
  expect_sums_close(all.dbeta, g.dbeta, g.dbeta_terms, single);
  expect_sums_close(all.dgamma, g.dgamma, terms, mean_error + single);
}

TEST(BatchNorm, RanksOfAGroupEqualOneRankWithAllRows) {
  for (const DType dtype : compute_types) {
    for (const bool relu : {false, true}) {
      for (const bool add : {false, true}) {
        compare_in_parts({2, 5, relu, add, dtype}, 2);  // one row on each rank
        compare_in_parts({399, 3, relu, add, dtype}, 3);
        compare_in_parts({604, 64, relu, add, dtype}, 4);
      }
    }
  }
  compare_in_parts({2002, 17, true, false, DType::float32, 100}, 2);
}

TEST(BatchNorm, AGroupTakesTheSameWorkspaceOnMeta) {
  const Case c{503, 48, true, true, DType::bfloat16};
  const ops::BatchGroup group{.rank = 1, .size = 3, .gather = [](const Tensor&) {}};
  std::int64_t bytes[2], counted[2];
  for (const DeviceKind kind : {tested_device(), DeviceKind::meta}) {
    BatchNormFixture p(c, kind);
    const Tensor all = p.fixture.make(DType::float32, {3, 2 * c.channels});
    ops::batch_norm_join(p.fixture.context, p.op, group, all, p.statistics());
    ops::batch_norm_backward(p.fixture.context, p.op, p.x, p.y, p.dy, p.gamma, p.beta,
                             p.statistics(), p.dx, p.dresidual, p.dgamma, p.dbeta, p.running,
                             p.mask, ops::Write::assign, group);
    bytes[kind == DeviceKind::meta] = p.fixture.workspace.peak_bytes();
    counted[kind == DeviceKind::meta] = p.fixture.context.counters().calls;
    EXPECT_EQ(p.fixture.workspace.used_bytes(), 0);
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_EQ(counted[0], counted[1]);
}

TEST(BatchNorm, SameBitsOnAnyNumberOfThreads) {
  BatchNormFixture many({30011, 16, true, true, DType::float32}),
      one({30011, 16, true, true, DType::float32});
  many.forward();
  many.backward();
  on_one_thread([&] {
    one.forward();
    one.backward();
  });
  expect_same_bytes(many.y, one.y, "y");
  expect_same_bytes(many.variance, one.variance, "variance");
  expect_same_bytes(many.dx, one.dx, "dx");
  expect_same_bytes(many.dgamma, one.dgamma, "dgamma");
}

TEST(BatchNorm, ANaNIsSeenBehindTheRelu) {
  BatchNormFixture p({64, 4, true, false, DType::float32});
  set_value(p.x, 5, std::nan(""));
  p.forward();
  EXPECT_TRUE(std::isnan(value_at(p.y, 1)));   // the NaN's channel
  EXPECT_FALSE(std::isnan(value_at(p.y, 2)));  // another channel
}

TEST(BatchNorm, MetaTakesTheSameWorkspaceAndCountsTheSame) {
  const Case c{5003, 48, true, true, DType::bfloat16};
  BatchNormFixture real(c), meta(c, DeviceKind::meta);
  for (BatchNormFixture* p : {&real, &meta}) {
    p->forward();
    p->backward();
  }
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), meta.fixture.workspace.peak_bytes());
  EXPECT_GT(meta.fixture.workspace.peak_bytes(), 0);
  EXPECT_EQ(meta.fixture.workspace.used_bytes(), 0);
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_EQ(meta.fixture.context.counters().calls, 3);
}

}  // namespace
}  // namespace trireme::test
