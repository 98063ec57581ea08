// SPDX-License-Identifier: Apache-2.0
//
// Losses of values against a double-precision reference: each form, missing values, targets that
// are mixed in pairs, outputs that are not finite, number of threads, and the workspace that meta
// plans. The gradient is also checked against finite differences of the loss.

#include "trireme/ops/value_loss.hpp"

#include <array>
#include <cmath>
#include <limits>

#include "norm_reference.hpp"

namespace trireme::test {
namespace {

using ops::ValueLossForm;

constexpr ValueLossForm forms[] = {ValueLossForm::squared, ValueLossForm::absolute,
                                   ValueLossForm::huber, ValueLossForm::logistic};
constexpr double delta = 0.75, missing = std::numeric_limits<double>::quiet_NaN();

double loss_of(ValueLossForm form, double output, double target) {
  const double error = output - target, size = std::abs(error);
  if (form == ValueLossForm::logistic) return std::log(1 + std::exp(output)) - output * target;
  if (form == ValueLossForm::squared) return error * error;
  if (form == ValueLossForm::absolute) return size;
  return size <= delta ? error * error / 2 : delta * (size - delta / 2);
}

struct ValueFixture {
  ValueFixture(std::int64_t rows, std::int64_t columns, DType dtype,
               DeviceKind kind = tested_device())
      : fixture(kind),
        outputs(fixture.random(dtype, {rows, columns}, "outputs", 1)),
        targets(fixture.random(DType::float32, {rows, columns}, "targets", 1)),
        sums(fixture.make(DType::float64, {4})),
        doutputs(fixture.make(dtype, {rows, columns})) {}
  void run(ValueLossForm form, float scale, const Tensor& to) {
    ops::value_loss(fixture.context, outputs, {targets, weights}, form, delta, scale, sums, to);
  }
  /// Makes some values missing, and whole rows.
  void leave_out() {
    const std::int64_t columns = targets.shape[1];
    for (std::int64_t i = 0; i < targets.elements(); ++i)
      if (i % 5 == 3 || i / columns % 7 == 4) set_value(targets, i, missing);
  }
  void mix() {
    weights = fixture.make(DType::float32, {targets.shape[0]});
    const double some[] = {0.25, 1, 0.5, 0.875, 0, 0.125, 0.75};
    for (std::int64_t row = 0; row < targets.shape[0] && weights.data != nullptr; ++row)
      set_value(weights, row, some[row % 7]);
  }
  /// Returns the target of element i; NaN: none.
  double target(std::int64_t i) const {
    const std::int64_t columns = targets.shape[1], row = i / columns;
    const double own = value_at(targets, i);
    if (!weights.defined()) return own;
    const double partner = value_at(targets, (row ^ 1) * columns + i % columns),
                 weight = value_at(weights, row);
    return std::isnan(partner) ? own : weight * own + (1 - weight) * partner;
  }
  OpsFixture fixture;
  Tensor outputs, targets, sums, doutputs, weights;
};

void compare(ValueFixture& p, ValueLossForm form) {
  SCOPED_TRACE(testing::Message() << p.outputs.shape[0] << " x " << p.outputs.shape[1] << ", form "
                                  << static_cast<int>(form) << to_string(p.outputs.dtype));
  double loss = 0, count = 0;
  Values gradient(static_cast<std::size_t>(p.outputs.elements()), 0.0);
  for (std::int64_t i = 0; i < p.outputs.elements(); ++i) {
    const double target = p.target(i), output = value_at(p.outputs, i);
    if (std::isnan(target)) continue;
    loss += loss_of(form, output, target);
    count += 1;
    constexpr double step = 1e-6;
    gradient[static_cast<std::size_t>(i)] =
        0.25 * (loss_of(form, output + step, target) - loss_of(form, output - step, target)) /
        (2 * step);
  }
  p.run(form, 0.25f, p.doutputs);
  // Mixed targets are rounded to float32.
  EXPECT_NEAR(value_at(p.sums, 0), loss, 1e-6 * loss + 1e-12);
  EXPECT_EQ(value_at(p.sums, 1), count);
  EXPECT_EQ(value_at(p.sums, 2), 0);
  EXPECT_EQ(value_at(p.sums, 3), 0);
  expect_close(p.doutputs, gradient, 1e-6, unit_roundoff(p.outputs.dtype) + 1e-6, "doutputs");
}

TEST(ValueLoss, EqualsReference) {
  for (const DType dtype : compute_types)
    for (const ValueLossForm form : forms)
      for (const auto& [rows, columns] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {14, 3}, {66, 10}, {18, 1000}, {2, 4099}})
        for (const bool incomplete : {false, true})
          for (const bool mixed : {false, true}) {
            if (rows % 2 != 0 && mixed) continue;
            ValueFixture p(rows, columns, dtype);
            if (incomplete) p.leave_out();
            if (mixed) p.mix();
            compare(p, form);
          }
}

TEST(ValueLoss, GradientMayLieOnTheOutputsAndEvaluationNeedsNone) {
  for (const DType dtype : compute_types)
    for (const ValueLossForm form : forms) {
      ValueFixture p(32, 37, dtype);
      p.leave_out();
      p.run(form, 0.5f, p.doutputs);
      const Values sums = values(p.sums);
      p.run(form, 0.5f, {});
      EXPECT_EQ(values(p.sums), sums);
      p.run(form, 0.5f, p.outputs);
      EXPECT_EQ(values(p.sums), sums);
      expect_same_bytes(p.outputs, p.doutputs);
    }
}

TEST(ValueLoss, NonFiniteOutputsShowInLossAndGradient) {
  for (const ValueLossForm form : forms) {
    ValueFixture p(3, 11, DType::float32);
    set_value(p.outputs, 4, std::nan(""));
    p.run(form, 1, p.doutputs);
    EXPECT_TRUE(std::isnan(value_at(p.sums, 0)));
    EXPECT_TRUE(std::isnan(value_at(p.doutputs, 4)));
    EXPECT_TRUE(std::isfinite(value_at(p.doutputs, 5)));
  }
}

TEST(ValueLoss, LogitsMayBeLarge) {
  for (const auto& [logit, target, loss, slope] : {std::array<double, 4>{1e4, 1, 0, 0},
                                                   {1e4, 0, 1e4, 1},
                                                   {-1e4, 1, 1e4, -1},
                                                   {-1e4, 0, 0, 0}}) {
    ValueFixture p(1, 1, DType::float32);
    set_value(p.outputs, 0, logit);
    set_value(p.targets, 0, target);
    p.run(ValueLossForm::logistic, 1, p.doutputs);
    EXPECT_EQ(value_at(p.sums, 0), loss);
    EXPECT_EQ(value_at(p.doutputs, 0), slope);
  }
}

TEST(ValueLoss, SameBitsOnAnyNumberOfThreads) {
  ValueFixture many(1001, 10, DType::float32), one(1001, 10, DType::float32);
  many.run(ValueLossForm::huber, 1, many.doutputs);
  on_one_thread([&] { one.run(ValueLossForm::huber, 1, one.doutputs); });
  expect_same_bytes(many.sums, one.sums);
  expect_same_bytes(many.doutputs, one.doutputs);
}

TEST(ValueLoss, MetaTakesTheSameWorkspace) {
  ValueFixture real(78, 10, DType::bfloat16), meta(78, 10, DType::bfloat16, DeviceKind::meta);
  real.mix();
  meta.mix();
  real.run(ValueLossForm::squared, 1, real.doutputs);
  meta.run(ValueLossForm::squared, 1, meta.doutputs);
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), meta.fixture.workspace.peak_bytes());
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_GT(meta.fixture.workspace.peak_bytes(), 0);
}

}  // namespace
}  // namespace trireme::test
