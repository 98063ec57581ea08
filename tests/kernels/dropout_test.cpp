// SPDX-License-Identifier: Apache-2.0
//
// Dropout, alone and fused with bias and residual. The mask must equal its definition in
// ops/dropout.hpp, also for parts of the rows and in the gradient.
// Also: the share of dropped elements, probability 0, stochastic depth, number of threads, and
// meta. Results without a bias or residual must be exact; sums are within three float32 roundings.

#include "trireme/ops/dropout.hpp"

#include "norm_reference.hpp"

namespace trireme::test {
namespace {

constexpr std::uint64_t sample_keys[] = {11, 0xFEDCBA9876543210ull, 13, 1ull << 63};

ops::Dropout layer(float probability, std::int64_t context, std::int64_t first_row = 0) {
  return {probability, 0x0123456789ABCDEFull, sample_keys, first_row, context};
}

/// Returns the layer with its keys in memory that kernels can read.
ops::Dropout placed(OpsFixture& f, ops::Dropout op) {
  op.sample_keys = f.placed(sample_keys, std::size(sample_keys));
  return op;
}

/// Returns the layer with stochastic depth.
ops::Dropout with_path(ops::Dropout op, float probability) {
  op.path_probability = probability;
  op.path_key = 0x0F1E2D3C4B5A6978ull;  // of four samples, two are dropped
  return op;
}

/// Returns a sample's factor of stochastic depth as ops/dropout.hpp defines it.
double path_factor(const ops::Dropout& op, std::int64_t sample) {
  const std::uint32_t word = philox(mix64(op.path_key ^ op.sample_keys[sample]), 0, 0).word[0];
  return uniform_unit(word) >= op.path_probability
             ? static_cast<double>(1.0f / (1.0f - op.path_probability))
             : 0.0;
}

/// Returns the mask as ops/dropout.hpp defines it, element by element: 0 or 1 / (1 - p), times the
/// factor of stochastic depth.
Values mask(const ops::Dropout& op, std::int64_t rows, std::int64_t width) {
  Values m(static_cast<std::size_t>(rows * width));
  for (std::int64_t i = 0; i < rows * width; ++i) {
    const std::int64_t row = op.first_row + i / width, sample = row / op.context,
                       e = row % op.context * width + i % width;
    const std::uint32_t word =
        philox(mix64(op.key ^ op.sample_keys[sample]), static_cast<std::uint64_t>(e) / 4, 0)
            .word[e % 4];
    m[i] = uniform_unit(word) >= op.probability
               ? static_cast<double>(1.0f / (1.0f - op.probability))
               : 0.0;
    m[i] *= path_factor(op, sample);
  }
  return m;
}

// rows, width, rows per sample, first row: 1, odd, prime, a multiple of four, more than one block
// of numbers, a start inside a sample.
constexpr std::array<std::int64_t, 4> shapes[] = {{1, 1, 1, 0},  {6, 7, 3, 0},    {10, 61, 5, 3},
                                                  {8, 64, 2, 0}, {4, 1031, 3, 2}, {2, 128, 7, 25},
                                                  {5, 64, 4, 2}};

TEST(Dropout, MaskIsThatOfTheSampleAndElement) {
  for (const DType dtype : compute_types) {
    for (const auto& [rows, width, context, first_row] : shapes) {
      SmallOpsFixture f;
      const ops::Dropout op = layer(0.3f, context, first_row);
      const Tensor x = f.random(dtype, {rows, width}, "x"), y = f.make(dtype, {rows, width}),
                   expected = f.make(dtype, {rows, width});
      const Values at = values(x);
      Values m = mask(op, rows, width);
      for (std::int64_t i = 0; i < x.elements(); ++i)
        m[i] = static_cast<float>(m[i]) * static_cast<float>(at[i]);
      assign(expected, m);
      ops::dropout(f.context, placed(f, op), x, y);
      ASSERT_EQ(values(y), values(expected)) << rows << " x " << width;
      ops::dropout(f.context, placed(f, op), x, x);
      expect_same_bytes(x, y, "in place");
    }
  }
}

TEST(Dropout, RowsOfAPartAreThoseOfTheWhole) {
  SmallOpsFixture f;
  const Tensor x = f.random(DType::float32, {12, 37}, "x"),
               whole = f.make(DType::float32, {12, 37}), part = f.make(DType::float32, {12, 37});
  ops::dropout(f.context, placed(f, layer(0.5f, 4)), x, whole);
  for (std::int64_t row = 0; row < 12; row += 3)
    ops::dropout(f.context, placed(f, layer(0.5f, 4, row)), x.rows(row, row + 3),
                 part.rows(row, row + 3));
  expect_same_bytes(part, whole);
}

TEST(Dropout, DropsTheAskedShareAndKeepsTheMean) {
  SmallOpsFixture f;
  constexpr std::int64_t rows = 400, width = 257, n = rows * width;
  for (const float p : {0.1f, 0.5f, 0.9f}) {
    const Tensor y = f.filled(DType::float32, {rows, width}, 1);
    ops::dropout(f.context, placed(f, layer(p, 100)), y, y);
    double dropped = 0, sum = 0;
    for (const double v : values(y)) {
      dropped += v == 0;
      sum += v;
    }
    // Standard deviation of the dropped share; five of them are exceeded once in a million.
    const double deviation = std::sqrt(p * (1.0 - p) / n);
    EXPECT_NEAR(dropped / n, p, 5 * deviation);
    EXPECT_NEAR(sum / n, 1, 5 * deviation / (1 - p));
  }
}

TEST(Dropout, ProbabilityZeroIsACopyThatNeedsNoKeys) {
  for (const DType dtype : compute_types) {
    SmallOpsFixture f;
    const Tensor x = f.random(dtype, {5, 13}, "x"), y = f.make(dtype, {5, 13}),
                 before = f.copy_of(x);
    ops::dropout(f.context, {}, x, y);
    expect_same_bytes(y, x);
    ops::dropout(f.context, {}, x, x);
    expect_same_bytes(x, before, "in place");
  }
}

TEST(Dropout, AddIsDropoutOfXAndBiasPlusTheResidual) {
  for (const auto& [from, to] : {std::pair{DType::float32, DType::float32},
                                 {DType::bfloat16, DType::bfloat16},
                                 {DType::float32, DType::bfloat16},
                                 {DType::float16, DType::float16},
                                 {DType::float32, DType::float16}}) {
    for (const auto& [p, path] :
         {std::pair{0.0f, 0.0f}, {0.3f, 0.0f}, {0.0f, 0.6f}, {0.3f, 0.6f}}) {
      for (const bool with_bias : {false, true}) {
        for (const auto& [rows, width, context, first_row] : shapes) {
          SmallOpsFixture f;
          const ops::Dropout op = with_path(layer(p, context, first_row), path);
          const Tensor x = f.random(from, {rows, width}, "x"),
                       residual = f.random(to, {rows, width}, "residual"),
                       y = f.make(to, {rows, width});
          const Tensor bias = with_bias ? f.random(DType::float32, {width}, "bias") : Tensor{};
          const Values m = mask(op, rows, width), of_x = values(x),
                       of_bias = with_bias ? values(bias) : Values(),
                       of_residual = values(residual);
          Values expected, bounds;
          for (std::int64_t i = 0; i < x.elements(); ++i) {
            const double a = of_x[i], b = with_bias ? of_bias[i % width] : 0, r = of_residual[i];
            expected.push_back((a + b) * m[i] + r);
            // Two sums and two products are rounded in float32, the result in its own type.
            bounds.push_back(
                4 * 0x1p-24 * ((std::abs(a) + std::abs(b)) * m[i] + std::abs(r)) +
                (to != DType::float32 ? 1.01 * unit_roundoff(to) * std::abs(expected.back()) : 0));
          }
          ops::dropout_add(f.context, placed(f, op), x, bias, residual, y);
          expect_within(y, expected, bounds, to_string(from) + " to " + to_string(to));
          if (from == to) {
            const Tensor on_x = f.copy_of(x);
            ops::dropout_add(f.context, placed(f, op), on_x, bias, residual, on_x);
            expect_same_bytes(on_x, y, "y on x");
          }
          ops::dropout_add(f.context, placed(f, op), x, bias, residual, residual);
          expect_same_bytes(residual, y, "y on the residual");
        }
      }
    }
  }
}

/// Keys as those of a run: 4000 samples of two rows.
TEST(Dropout, PathsAreDroppedBySampleInTheAskedShare) {
  SmallOpsFixture f;
  constexpr std::int64_t samples = 4000, context = 2, width = 5;
  std::vector<std::uint64_t> keys;
  for (std::uint64_t sample = 0; sample < samples; ++sample) keys.push_back(mix64(sample + 1));
  for (const float p : {0.1f, 0.5f, 0.9f}) {
    ops::Dropout op = with_path({.context = context}, p);
    op.sample_keys = f.placed(keys);
    const Tensor y = f.filled(DType::float32, {samples * context, width}, 1);
    ops::dropout(f.context, op, y, y);
    const Values found = values(y);
    double dropped = 0;
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      const double factor = found[static_cast<std::size_t>(sample * context * width)];
      for (std::int64_t i = 0; i < context * width; ++i)
        ASSERT_EQ(found[static_cast<std::size_t>(sample * context * width + i)], factor);
      ASSERT_TRUE(factor == 0 || factor == static_cast<double>(1.0f / (1.0f - p))) << factor;
      dropped += factor == 0;
    }
    // Five standard deviations, exceeded once in a million.
    EXPECT_NEAR(dropped / samples, p, 5 * std::sqrt(p * (1.0 - p) / samples));
  }
}

TEST(Dropout, GradientHasForwardsMask) {
  // y is linear in x: <dropout(x), dy> = <x, dropout(dy)>.
  SmallOpsFixture f;
  const ops::Dropout op = placed(f, with_path(layer(0.2f, 5), 0.4f));
  const Tensor x = f.random(DType::float32, {17, 29}, "x"),
               dy = f.random(DType::float32, {17, 29}, "dy");
  const Tensor y = f.make(DType::float32, {17, 29}), dx = f.make(DType::float32, {17, 29});
  ops::dropout(f.context, op, x, y);
  ops::dropout(f.context, op, dy, dx);
  EXPECT_NEAR(dot(values(y), values(dy)), dot(values(x), values(dx)),
              2 * 0x1p-24 * dot(magnitudes(values(y)), magnitudes(values(dy))));
}

TEST(Dropout, SameBitsOnAnyNumberOfThreads) {
  SmallOpsFixture f;
  const Tensor x = f.random(DType::float32, {1003, 67}, "x"),
               many = f.make(DType::float32, x.shape), one = f.make(DType::float32, x.shape);
  const ops::Dropout op = placed(f, with_path(layer(0.1f, 400), 0.3f));
  ops::dropout(f.context, op, x, many);
  on_one_thread([&] { ops::dropout(f.context, op, x, one); });
  expect_same_bytes(many, one);
}

TEST(Dropout, MetaCountsAsTheCpu) {
  SmallOpsFixture real, meta(DeviceKind::meta);
  for (OpsFixture* f : {&real, &meta}) {
    const Tensor x = f->filled(DType::float32, {4, 9}, 1),
                 y = f->filled(DType::bfloat16, {4, 9}, 1),
                 bias = f->filled(DType::float32, {9}, 1);
    ops::dropout(f->context, placed(*f, layer(0.5f, 2)), x, x);
    ops::dropout(f->context, {}, y, f->make(DType::bfloat16, {4, 9}));
    ops::dropout_add(f->context, placed(*f, layer(0.5f, 2)), x, bias, y, y);
  }
  EXPECT_EQ(real.context.counters().bytes, meta.context.counters().bytes);
  EXPECT_EQ(meta.context.counters().calls, 3);
  EXPECT_EQ(real.workspace.peak_bytes(), 0);
}

}  // namespace
}  // namespace trireme::test
