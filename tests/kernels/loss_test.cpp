// Softmax cross-entropy against a double-precision reference: loss, accuracy, gradient, ties, few
// classes, missing rows, logits that are not finite, number of threads, and the workspace that meta
// plans.
// The gradient is also checked against finite differences of the loss.

#include "trireme/ops/loss.hpp"

#include <algorithm>

#include "kernels/norm_reference.hpp"

namespace trireme::test {
namespace {

struct Sums {
  double loss = 0, count = 0, top1 = 0, top5 = 0;
};

/// Returns the loss sum of all rows in double; rows with label -1 are skipped.
Sums reference(const Values& logits, const std::vector<int>& labels, std::int64_t classes,
               double smoothing) {
  Sums sums;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0) continue;
    const double* x = logits.data() + static_cast<std::int64_t>(row) * classes;
    const double largest = *std::max_element(x, x + classes);
    double total = 0;
    for (std::int64_t c = 0; c < classes; ++c) total += std::exp(x[c] - largest);
    const double log_total = largest + std::log(total);
    std::int64_t before = 0;
    for (std::int64_t c = 0; c < classes; ++c) {
      const double target =
          (c == labels[row] ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
      sums.loss += target * (log_total - x[c]);
      before += x[c] > x[labels[row]] || (x[c] == x[labels[row]] && c < labels[row]);
    }
    sums.count += 1;
    sums.top1 += before < 1;
    sums.top5 += before < 5;
  }
  return sums;
}

struct LossFixture {
  LossFixture(std::int64_t rows, std::int64_t classes, DType dtype, double scale = 1,
              DeviceKind kind = tested_device())
      : fixture(kind),
        logits(fixture.random(dtype, {rows, classes}, "logits", scale)),
        labels(fixture.make(DType::int32, {rows})),
        sums(fixture.make(DType::float64, {4})),
        dlogits(fixture.make(dtype, {rows, classes})) {
    for (std::int64_t row = 0; row < rows; ++row) {
      label.push_back(row % 7 == 5 ? -1
                                   : static_cast<int>(mix64(static_cast<std::uint64_t>(row)) %
                                                      static_cast<std::uint64_t>(classes)));
    }
    if (labels.data != nullptr) assign(labels, Values(label.begin(), label.end()));
  }
  void run(float smoothing, float gradient_scale, const Tensor& to) {
    ops::cross_entropy(fixture.context, logits, labels, smoothing, gradient_scale, sums, to);
  }
  OpsFixture fixture;
  Tensor logits, labels, sums, dlogits;
  std::vector<int> label;
};

TEST(CrossEntropy, EqualsReference) {
  for (const DType dtype : compute_types) {
    for (const auto& [rows, classes] : {std::pair<std::int64_t, std::int64_t>{1, 2},
                                        {13, 3},
                                        {67, 10},
                                        {29, 97},
                                        {17, 1000},
                                        {3, 4099}}) {
      for (const double smoothing : {0.0, 0.1}) {
        // 30: most probabilities vanish
        for (const double scale : {1.0, 30.0}) {
          SCOPED_TRACE(testing::Message() << rows << " x " << classes << ", smoothing " << smoothing
                                          << ", scale " << scale << to_string(dtype));
          LossFixture p(rows, classes, dtype, scale);
          p.run(static_cast<float>(smoothing), 0.25f, p.dlogits);
          const double used = static_cast<float>(smoothing);
          const Sums expected = reference(values(p.logits), p.label, classes, used);
          // 64 float32 additions per lane, and fast_exp within two units in the last place; per
          // row, with differences up to 10 * scale.
          EXPECT_NEAR(value_at(p.sums, 0), expected.loss,
                      static_cast<double>(rows) * 0x1p-24 * (64 + 64 * scale));
          EXPECT_EQ(value_at(p.sums, 1), expected.count);
          EXPECT_EQ(value_at(p.sums, 2), expected.top1);
          EXPECT_EQ(value_at(p.sums, 3), expected.top5);
          Values gradient(static_cast<std::size_t>(rows * classes), 0.0);
          const Values x = values(p.logits);
          for (std::int64_t row = 0; row < rows; ++row) {
            if (p.label[row] < 0) continue;
            double total = 0,
                   largest = *std::max_element(&x[row * classes], &x[row * classes] + classes);
            for (std::int64_t c = 0; c < classes; ++c)
              total += std::exp(x[row * classes + c] - largest);
            for (std::int64_t c = 0; c < classes; ++c) {
              const double target =
                  (c == p.label[row] ? 1 - used : 0) + used / static_cast<double>(classes);
              gradient[row * classes + c] =
                  0.25 * (std::exp(x[row * classes + c] - largest) / total - target);
            }
          }
          // x - maximum is rounded by up to 2^-24 * |difference|. exp turns this into a relative
          // error, for probabilities that count (difference below 20).
          expect_close(p.dlogits, gradient, 32 * 0x1p-24 * 0.25,
                       unit_roundoff(dtype) + 64 * 0x1p-24, "dlogits");
        }
      }
    }
  }
}

TEST(CrossEntropy, GradientIsTheDerivative) {
  constexpr std::int64_t rows = 6, classes = 5;
  LossFixture p(rows, classes, DType::float32);
  p.run(0.1f, 1, p.dlogits);
  const Values x = values(p.logits);
  for (std::size_t i = 0; i < x.size(); ++i) {
    Values direction(x.size(), 0.0);
    direction[i] = 1;
    const double expected = directional_derivative(
        [&](const Values& v) { return reference(v, p.label, classes, 0.1f).loss; }, x, direction);
    // 16 float32 roundings of a number below 1
    EXPECT_NEAR(value_at(p.dlogits, static_cast<std::int64_t>(i)), expected, 1e-6);
  }
}

TEST(CrossEntropy, TiesGoToTheLowerIndex) {
  LossFixture p(3, 8, DType::float32);
  assign(p.logits, Values(24, 1.0));
  assign(p.labels, {0, 4, 5});
  p.run(0, 1, p.dlogits);
  EXPECT_EQ(value_at(p.sums, 2), 1);  // the row with label 0
  EXPECT_EQ(value_at(p.sums, 3), 2);  // and the row with label 4
}

TEST(CrossEntropy, WithFewerThanFiveClassesAllAreAmongTheFirstFive) {
  LossFixture p(11, 3, DType::float32);
  p.run(0, 1, {});
  EXPECT_EQ(value_at(p.sums, 3), value_at(p.sums, 1));
}

TEST(CrossEntropy, GradientMayLieOnTheLogitsAndEvaluationNeedsNone) {
  for (const DType dtype : compute_types) {
    LossFixture p(31, 37, dtype);
    p.run(0.1f, 0.5f, p.dlogits);
    const Values sums = values(p.sums);
    p.run(0.1f, 0.5f, {});
    EXPECT_EQ(values(p.sums), sums);
    p.run(0.1f, 0.5f, p.logits);
    EXPECT_EQ(values(p.sums), sums);
    expect_same_bytes(p.logits, p.dlogits);
  }
}

TEST(CrossEntropy, MissingRowsCountNowhere) {
  LossFixture p(9, 11, DType::float32);
  assign(p.labels, Values(9, -1.0));
  p.run(0.1f, 1, p.dlogits);
  EXPECT_EQ(values(p.sums), Values(4, 0.0));
  EXPECT_EQ(values(p.dlogits), Values(99, 0.0));
}

TEST(CrossEntropy, WhatIsNotFiniteShowsInTheLoss) {
  LossFixture p(3, 11, DType::float32);
  set_value(p.logits, 4, std::nan(""));
  p.run(0, 1, p.dlogits);
  EXPECT_TRUE(std::isnan(value_at(p.sums, 0)));
  LossFixture beyond(3, 11, DType::float32);
  set_value(beyond.labels, 1, 11);
  beyond.run(0, 1, beyond.dlogits);
  EXPECT_TRUE(std::isnan(value_at(beyond.sums, 0)));
}

TEST(CrossEntropy, SameBitsOnAnyNumberOfThreads) {
  LossFixture many(1001, 10, DType::float32), one(1001, 10, DType::float32);
  many.run(0.1f, 1, many.dlogits);
  on_one_thread([&] { one.run(0.1f, 1, one.dlogits); });
  expect_same_bytes(many.sums, one.sums);
  expect_same_bytes(many.dlogits, one.dlogits);
}

TEST(CrossEntropy, MetaTakesTheSameWorkspace) {
  LossFixture real(77, 10, DType::bfloat16), meta(77, 10, DType::bfloat16, 1, DeviceKind::meta);
  real.run(0, 1, real.dlogits);
  meta.run(0, 1, meta.dlogits);
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), meta.fixture.workspace.peak_bytes());
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_GT(meta.fixture.workspace.peak_bytes(), 0);
}

}  // namespace
}  // namespace trireme::test
