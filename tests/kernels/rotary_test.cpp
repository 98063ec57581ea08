// SPDX-License-Identifier: Apache-2.0
//
// Rotary embedding against a double-precision reference: values, the end of a long context, a
// rotation by one radian, the inverse as the transpose, number of threads, and meta.
// Tolerances: three float32 roundings of each result, and an error of 1e-9 in the angle.

#include "trireme/ops/rotary.hpp"

#include "norm_reference.hpp"

namespace trireme::test {
namespace {

/// Reference: pairs (i, i + head_width/2) of the first heads, rotated by position * base^(-2 i /
/// head_width).
Values reference(const ops::Rotary& op, Values x, bool inverse) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t head = 0; head < op.heads; ++head) {
      for (std::int64_t i = 0; i < op.head_width / 2; ++i) {
        const double frequency =
            std::pow(op.base, -2.0 * static_cast<double>(i) / static_cast<double>(op.head_width));
        const double angle =
            static_cast<double>((op.first + row) % op.context) * frequency * (inverse ? -1 : 1);
        double& first = x[row * op.columns + head * op.head_width + i];
        double& second = x[row * op.columns + head * op.head_width + op.head_width / 2 + i];
        const double a = first, b = second;
        first = a * std::cos(angle) - b * std::sin(angle);
        second = a * std::sin(angle) + b * std::cos(angle);
      }
    }
  }
  return x;
}

void compare(const ops::Rotary& op) {
  SCOPED_TRACE(testing::Message() << op.rows << " x " << op.columns << ", " << op.heads
                                  << " heads of " << op.head_width << ", context " << op.context
                                  << ", " << to_string(op.dtype));
  for (const bool inverse : {false, true}) {
    SmallOpsFixture f;
    const Tensor x = f.random(op.dtype, {op.rows, op.columns}, "x");
    const Values before = values(x), expected = reference(op, before, inverse);
    ops::rotary(f.context, op, x, inverse);
    const std::int64_t half = op.head_width / 2, turned = op.heads * op.head_width;
    Values bounds(before.size(), 0.0);
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      const std::int64_t column = i % op.columns;
      // Columns behind the heads are unchanged: bound 0.
      if (column >= turned) continue;
      const std::int64_t partner = column % op.head_width < half ? i + half : i - half;
      // Sine and cosine, their products, and the sum are rounded: 3 roundings of |a| + |b|. The
      // angle is accurate to 1e-9.
      bounds[i] =
          (3 * 0x1p-24 + 2e-9) * (std::abs(before[i]) + std::abs(before[partner])) +
          (op.dtype != DType::float32 ? 1.01 * unit_roundoff(op.dtype) * std::abs(expected[i]) : 0);
    }
    expect_within(x, expected, bounds, inverse ? "inverse" : "forward");
  }
}

TEST(Rotary, EqualsReference) {
  for (const DType dtype : compute_types) {
    compare({1, 2, 1, 2, 1, dtype});
    // with columns behind the heads, and rows of two samples
    compare({7, 30, 3, 6, 5, dtype});
    // more than one block of pairs, with a remainder
    compare({23, 301, 2, 134, 23, dtype});
    compare({64, 384, 4, 64, 32, dtype});
    // a number of heads that is no multiple of four
    compare({9, 1344, 13, 96, 4, dtype});
    // bases of other models, and the smallest one: equal angles
    for (const double base : {1.0, 100.0, 5e5}) compare({37, 96, 2, 48, 29, dtype, base});
  }
}

TEST(Rotary, IsRightAtTheEndOfALongContext) {
  compare({8192, 64, 1, 64, 8192, DType::float32});
  compare({8192, 12, 2, 6, 8192, DType::float32, 500000});
  compare({8192, 64, 1, 64, 8192, DType::float32, 1e6});
}

TEST(Rotary, RowsMayStartAtALaterPosition) {
  for (const DType dtype : compute_types) {
    compare({.rows = 1,
             .columns = 384,
             .heads = 4,
             .head_width = 64,
             .context = 40,
             .dtype = dtype,
             .first = 39});
    compare({.rows = 5,
             .columns = 30,
             .heads = 3,
             .head_width = 6,
             .context = 9,
             .dtype = dtype,
             .first = 7});
  }
}

TEST(Rotary, ATurnByOneRadian) {
  SmallOpsFixture f;
  const Tensor x = f.make(DType::float32, {2, 4});
  assign(x, {1, 2, 3, 4, 1, 2, 3, 4});
  ops::rotary(f.context, {2, 4, 1, 4, 2, DType::float32}, x, false);
  // Position 0 is unchanged. At position 1 the pair (0, 2) rotates by 1, the pair (1, 3) by
  // 10000^(-1/2) = 0.01.
  expect_close(
      x,
      {1, 2, 3, 4, std::cos(1.0) - 3 * std::sin(1.0), 2 * std::cos(0.01) - 4 * std::sin(0.01),
       std::sin(1.0) + 3 * std::cos(1.0), 2 * std::sin(0.01) + 4 * std::cos(0.01)},
      0, 1e-6);
}

TEST(Rotary, TheInverseIsTheTransposed) {
  // <R x, y> = <x, R' y>: backward needs the inverse.
  SmallOpsFixture f;
  const ops::Rotary op{37, 52, 3, 16, 29, DType::float32};
  const Tensor x = f.random(DType::float32, {37, 52}, "x"),
               y = f.random(DType::float32, {37, 52}, "y");
  const Values x_before = values(x), y_before = values(y);
  ops::rotary(f.context, op, x, false);
  ops::rotary(f.context, op, y, true);
  EXPECT_NEAR(dot(values(x), y_before), dot(x_before, values(y)),
              6 * 0x1p-24 * 2 * dot(magnitudes(x_before), magnitudes(y_before)));
}

TEST(Rotary, SameBitsOnAnyNumberOfThreads) {
  SmallOpsFixture f;
  const ops::Rotary op{1003, 96, 2, 48, 500, DType::float32};
  const Tensor many = f.random(DType::float32, {1003, 96}, "x"), one = f.copy_of(many);
  ops::rotary(f.context, op, many, false);
  on_one_thread([&] { ops::rotary(f.context, op, one, false); });
  expect_same_bytes(many, one);
}

TEST(Rotary, MetaTakesTheSameWorkspaceAndCountsTheSame) {
  SmallOpsFixture real, meta(DeviceKind::meta);
  for (OpsFixture* f : {&real, &meta})
    ops::rotary(f->context, {6, 40, 2, 16, 3, DType::bfloat16},
                f->filled(DType::bfloat16, {6, 40}, 1), false);
  EXPECT_EQ(real.workspace.peak_bytes(), meta.workspace.peak_bytes());
  EXPECT_GT(meta.workspace.peak_bytes(), 0);
  EXPECT_EQ(meta.workspace.used_bytes(), 0);
  EXPECT_EQ(real.context.counters().bytes, meta.context.counters().bytes);
  EXPECT_EQ(meta.context.counters().bytes, 2.0 * 2 * 6 * 32);
}

}  // namespace
}  // namespace trireme::test
