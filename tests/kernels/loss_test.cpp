// SPDX-License-Identifier: Apache-2.0
//
// Softmax cross-entropy against a double-precision reference: loss, accuracy, gradient, ties, few
// classes, weights of classes, missing rows, logits that are not finite, labels that are mixed in
// pairs, number of threads, and the workspace that meta plans. The gradient is also checked against
// finite differences of the loss.

#include "trireme/ops/loss.hpp"

#include <algorithm>
#include <limits>

#include "norm_reference.hpp"

namespace trireme::test {
namespace {

struct Sums {
  double loss = 0, count = 0, top1 = 0, top5 = 0;
};

/// Returns the targets [rows, classes] of all rows in double; rows with label -1 have zeros.
/// `weights`: of each row's own label; empty: 1.
Values targets_of(const std::vector<int>& labels, const std::vector<float>& weights,
                  std::int64_t classes, double smoothing) {
  Values targets(labels.size() * static_cast<std::size_t>(classes), 0.0);
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0) continue;
    double* target = targets.data() + static_cast<std::int64_t>(row) * classes;
    const bool mixed = !weights.empty() && labels[row ^ 1] >= 0;
    const double weight = mixed ? static_cast<double>(weights[row]) : 1;
    for (std::int64_t c = 0; c < classes; ++c) target[c] = smoothing / static_cast<double>(classes);
    target[labels[row]] += (1 - smoothing) * weight;
    if (mixed) target[labels[row ^ 1]] += (1 - smoothing) * (1 - weight);
  }
  return targets;
}

/// Returns the loss sum of all rows in double; rows with label -1 are skipped.
Sums reference(const Values& logits, const std::vector<int>& labels, std::int64_t classes,
               double smoothing, const std::vector<float>& weights = {}) {
  Sums sums;
  const Values targets = targets_of(labels, weights, classes, smoothing);
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0) continue;
    const bool second = !weights.empty() && labels[row ^ 1] >= 0 && weights[row] < 0.5f;
    const int label = labels[second ? row ^ 1 : row];
    const std::int64_t first = static_cast<std::int64_t>(row) * classes;
    const double* x = logits.data() + first;
    const double largest = *std::max_element(x, x + classes);
    double total = 0;
    for (std::int64_t c = 0; c < classes; ++c) total += std::exp(x[c] - largest);
    const double log_total = largest + std::log(total);
    std::int64_t before = 0;
    for (std::int64_t c = 0; c < classes; ++c) {
      sums.loss += targets[first + c] * (log_total - x[c]);
      before += x[c] > x[label] || (x[c] == x[label] && c < label);
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
    ops::cross_entropy(fixture.context, logits, {labels, smoothing, weights, class_weights},
                       gradient_scale, sums, to);
  }
  /// Mixes labels in pairs: weights of 0, 1, 1/2 and between.
  void mix() {
    weights = fixture.make(DType::float32, labels.shape);
    const float some[] = {0.3f, 1, 0.5f, 0.875f, 0, 0.125f, 0.7f};
    for (std::size_t row = 0; row < label.size(); ++row) weight.push_back(some[row % 7]);
    if (weights.data != nullptr) assign(weights, Values(weight.begin(), weight.end()));
  }
  OpsFixture fixture;
  Tensor logits, labels, sums, dlogits, weights, class_weights;
  std::vector<int> label;
  std::vector<float> weight;
};

/// Compares sums and gradient with the reference.
void compare(LossFixture& p, DType dtype, double smoothing, double scale) {
  const std::int64_t rows = p.logits.shape[0], classes = p.logits.shape[1];
  SCOPED_TRACE(testing::Message() << rows << " x " << classes << ", smoothing " << smoothing
                                  << ", scale " << scale << to_string(dtype));
  p.run(static_cast<float>(smoothing), 0.25f, p.dlogits);
  const double used = static_cast<float>(smoothing);
  const Values x = values(p.logits), targets = targets_of(p.label, p.weight, classes, used);
  const Sums expected = reference(x, p.label, classes, used, p.weight);
  // 64 float32 additions per lane, and fast_exp within two units in the last place; per row, with
  // differences up to 10 * scale.
  EXPECT_NEAR(value_at(p.sums, 0), expected.loss,
              static_cast<double>(rows) * 0x1p-24 * (64 + 64 * scale));
  EXPECT_EQ(value_at(p.sums, 1), expected.count);
  EXPECT_EQ(value_at(p.sums, 2), expected.top1);
  EXPECT_EQ(value_at(p.sums, 3), expected.top5);
  Values gradient(static_cast<std::size_t>(rows * classes), 0.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    if (p.label[row] < 0) continue;
    double total = 0, largest = *std::max_element(&x[row * classes], &x[row * classes] + classes);
    for (std::int64_t c = 0; c < classes; ++c) total += std::exp(x[row * classes + c] - largest);
    for (std::int64_t c = 0; c < classes; ++c) {
      const std::int64_t i = row * classes + c;
      gradient[i] = 0.25 * (std::exp(x[i] - largest) / total - targets[i]);
    }
  }
  // x - maximum is rounded by up to 2^-24 * |difference|. exp turns this into a relative error, for
  // probabilities that count (difference below 20).
  expect_close(p.dlogits, gradient, 32 * 0x1p-24 * 0.25, unit_roundoff(dtype) + 64 * 0x1p-24,
               "dlogits");
}

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
          LossFixture p(rows, classes, dtype, scale);
          compare(p, dtype, smoothing, scale);
        }
      }
    }
  }
}

TEST(CrossEntropy, OfMixedLabelsEqualsReference) {
  for (const DType dtype : compute_types) {
    for (const auto& [rows, classes] :
         {std::pair<std::int64_t, std::int64_t>{2, 2}, {14, 3}, {68, 10}, {30, 97}, {18, 1000}}) {
      for (const double smoothing : {0.0, 0.1}) {
        for (const double scale : {1.0, 30.0}) {
          LossFixture p(rows, classes, dtype, scale);
          p.mix();
          compare(p, dtype, smoothing, scale);
        }
      }
    }
  }
}

/// Rows of a class count as often as its weight says: the sums are those of runs with the rows of
/// one class each, times their weights. Powers of 2 scale the gradient without a rounding.
TEST(CrossEntropy, CountsRowsByTheWeightOfTheirClass) {
  const Values weights = {2, 0.5, 0, 1, 8};
  const auto classes = static_cast<std::int64_t>(weights.size());
  for (const DType dtype : compute_types) {
    LossFixture weighted(67, classes, dtype), plain(67, classes, dtype);
    weighted.class_weights = weighted.fixture.make(DType::float32, {classes});
    assign(weighted.class_weights, weights);
    weighted.run(0, 0.25f, weighted.dlogits);
    plain.run(0, 0.25f, plain.dlogits);
    Values gradient = values(plain.dlogits), expected(4);
    for (std::size_t row = 0; row < plain.label.size(); ++row)
      for (std::int64_t c = 0; c < classes; ++c)
        gradient[static_cast<std::size_t>(static_cast<std::int64_t>(row) * classes + c)] *=
            plain.label[row] < 0 ? 1 : weights[static_cast<std::size_t>(plain.label[row])];
    EXPECT_EQ(values(weighted.dlogits), gradient);
    for (std::int64_t c = 0; c < classes; ++c) {
      Values labels(plain.label.begin(), plain.label.end());
      for (double& label : labels) label = label == static_cast<double>(c) ? label : -1;
      assign(plain.labels, labels);
      plain.run(0, 0.25f, {});
      for (int s = 0; s < 4; ++s)
        expected[static_cast<std::size_t>(s)] +=
            weights[static_cast<std::size_t>(c)] * value_at(plain.sums, s);
    }
    EXPECT_NEAR(value_at(weighted.sums, 0), expected[0], 1e-12 * expected[0]);
    for (int s = 1; s < 4; ++s)
      EXPECT_EQ(value_at(weighted.sums, s), expected[static_cast<std::size_t>(s)]);
  }
}

/// Weights of 1 change no bit, and a weight of 0 is the partner's label.
TEST(CrossEntropy, AWholeLabelIsAPlainLabel) {
  for (const DType dtype : compute_types) {
    LossFixture plain(12, 37, dtype), whole(12, 37, dtype), swapped(12, 37, dtype);
    for (LossFixture* p : {&plain, &whole, &swapped})
      assign(p->labels, {3, 5, 5, 9, 0, 36, 7, 7, 1, 2, 30, 20});
    plain.run(0.1f, 0.5f, plain.dlogits);
    whole.weights = whole.fixture.filled(DType::float32, {12}, 1);
    whole.run(0.1f, 0.5f, whole.dlogits);
    expect_same_bytes(plain.sums, whole.sums);
    expect_same_bytes(plain.dlogits, whole.dlogits);
    assign(swapped.labels, {5, 3, 9, 5, 36, 0, 7, 7, 2, 1, 20, 30});
    swapped.weights = swapped.fixture.filled(DType::float32, {12}, 0);
    swapped.run(0.1f, 0.5f, swapped.dlogits);
    expect_same_bytes(plain.sums, swapped.sums);
    expect_same_bytes(plain.dlogits, swapped.dlogits);
  }
}

/// A missing row counts nowhere. Its partner keeps its own label alone. A label that no class has
/// shows in the loss of both rows.
TEST(CrossEntropy, APartnerMayBeMissing) {
  LossFixture mixed(4, 11, DType::float32), plain(4, 11, DType::float32);
  for (LossFixture* p : {&mixed, &plain}) assign(p->labels, {-1, 4, 3, -1});
  mixed.weights = mixed.fixture.filled(DType::float32, {4}, 0.25);
  mixed.run(0.1f, 1, mixed.dlogits);
  plain.run(0.1f, 1, plain.dlogits);
  expect_same_bytes(mixed.sums, plain.sums);
  expect_same_bytes(mixed.dlogits, plain.dlogits);
  assign(mixed.labels, {1, 4, 3, 11});
  mixed.run(0.1f, 1, mixed.dlogits);
  EXPECT_TRUE(std::isnan(value_at(mixed.sums, 0)));
  const Values gradient = values(mixed.dlogits);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    EXPECT_EQ(std::isnan(gradient[i]), i >= 22) << i;
}

TEST(CrossEntropy, AnInfiniteLogitOfTheOtherLabelIsNoTrap) {
  LossFixture p(2, 5, DType::float32);
  assign(p.labels, {0, 1});
  assign(p.logits, {1, -std::numeric_limits<double>::infinity(), 0, 0, 0, 0, 0, 0, 0, 0});
  p.weights = p.fixture.filled(DType::float32, {2}, 1);
  p.run(0, 1, p.dlogits);
  EXPECT_TRUE(std::isfinite(value_at(p.sums, 0)));
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
    for (const bool mixed : {false, true}) {
      LossFixture p(32, 37, dtype);
      if (mixed) p.mix();
      p.run(0.1f, 0.5f, p.dlogits);
      const Values sums = values(p.sums);
      p.run(0.1f, 0.5f, {});
      EXPECT_EQ(values(p.sums), sums);
      p.run(0.1f, 0.5f, p.logits);
      EXPECT_EQ(values(p.sums), sums);
      expect_same_bytes(p.logits, p.dlogits);
    }
  }
}

TEST(CrossEntropy, MissingRowsCountNowhere) {
  LossFixture p(9, 11, DType::float32);
  assign(p.labels, Values(9, -1.0));
  p.run(0.1f, 1, p.dlogits);
  EXPECT_EQ(values(p.sums), Values(4, 0.0));
  EXPECT_EQ(values(p.dlogits), Values(99, 0.0));
}

TEST(CrossEntropy, NonFiniteLogitsShowInTheLoss) {
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
  LossFixture real(78, 10, DType::bfloat16), meta(78, 10, DType::bfloat16, 1, DeviceKind::meta);
  real.mix();
  meta.mix();
  real.run(0, 1, real.dlogits);
  meta.run(0, 1, meta.dlogits);
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), meta.fixture.workspace.peak_bytes());
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_GT(meta.fixture.workspace.peak_bytes(), 0);
}

}  // namespace
}  // namespace trireme::test
