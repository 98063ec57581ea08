// SPDX-License-Identifier: Apache-2.0
//
// Elementwise ops against double-precision references: ReLU, sums, casts of every float16 and ties
// to even, fill, copy, swap, scaled copy, bias, column sums.
// Operands also begin at unaligned addresses, so that the paths without packs run. Meta must count
// the same work.

#include "trireme/ops/elementwise.hpp"

#include "reference.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::test {
namespace {

// Sizes: 1, odd, prime, and more than one piece of work with a remainder.
// A device takes packs of 8, with 32 of them per row and 4 rows per thread.
constexpr std::int64_t sizes[] = {1, 7, 61, 16384, 40009};

TEST(Elementwise, ReluAndItsGradient) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t n : sizes) {
      OpsFixture f;
      const Tensor x = f.random(dtype, {n}, "x"), y = f.make(dtype, {n}),
                   dy = f.random(dtype, {n}, "dy"), dx = f.make(dtype, {n});
      ops::relu_forward(f.context, x, y);
      ops::relu_backward(f.context, y, dy, dx);
      const Values at = values(x), gradient = values(dy), result = values(y),
                   result_dx = values(dx);
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(result[i], std::max(at[i], 0.0));
        ASSERT_EQ(result_dx[i], at[i] > 0 ? gradient[i] : 0.0);
      }
      ops::relu_backward(f.context, y, dy, dy);
      expect_same_bytes(dy, dx, "in place");
      ops::relu_forward(f.context, x, x);
      expect_same_bytes(x, y, "in place");
    }
  }
}

TEST(Elementwise, ReluLetsANaNThrough) {
  OpsFixture f;
  const Tensor x = f.filled(DType::float32, {3}, std::nan("")), y = f.make(DType::float32, {3});
  ops::relu_forward(f.context, x, y);
  EXPECT_TRUE(std::isnan(value_at(y, 1)));
}

TEST(Elementwise, AddIsRoundedOnce) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t n : sizes) {
      OpsFixture f;
      const Tensor x = f.random(dtype, {n}, "x"), y = f.random(dtype, {n}, "y");
      Values sum = values(x);
      const Values other = values(y);
      for (std::int64_t i = 0; i < n; ++i) sum[i] += other[i];
      ops::add(f.context, x, y);
      // 16-bit types: rounded to float32, then to the type.
      expect_close(y, sum, 0, unit_roundoff(dtype) + (dtype != DType::float32 ? 0x1p-24 : 0));
    }
  }
}

/// As when partial sums arrive in bfloat16; parts begin at any address.
TEST(Elementwise, BFloat16IsAddedToFloat32) {
  for (const std::int64_t n : sizes) {
    for (const std::int64_t first : {0, 1, 8}) {
      OpsFixture f;
      const Tensor x = f.random(DType::bfloat16, {n + 8}, "x"),
                   y = f.random(DType::float32, {n}, "y");
      Values sum = values(y);
      const Values other = values(x);
      for (std::int64_t i = 0; i < n; ++i) sum[i] += other[first + i];
      kernels::add(f.context.stream(), n, x.rows(first, first + n).as<BFloat16>(), y.as<float>());
      expect_close(y, sum, 0, unit_roundoff(DType::float32));
    }
  }
}

TEST(Elementwise, CastIsToTheNearestEven) {
  OpsFixture f;
  // 1 + 2^-8 is half way between two bfloat16 numbers (even: 1), and so is 1 + 3 * 2^-8 (even: 1 +
  // 2^-6).
  const Values in = {1, 1 + 0x1p-8, 1 + 3 * 0x1p-8, 1 + 0x1p-8 + 0x1p-20, -1 - 0x1p-8, 3.4e38, 0};
  const Values out = {1, 1, 1 + 0x1p-6, 1 + 0x1p-7, -1, INFINITY, 0};
  const Tensor x = f.make(DType::float32, {7}), y = f.make(DType::bfloat16, {7}),
               back = f.make(DType::float32, {7});
  assign(x, in);
  ops::cast(f.context, x, y);
  ops::cast(f.context, y, back);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(value_at(y, i), out[i]);
    EXPECT_EQ(value_at(back, i), out[i]);
  }
  for (const std::int64_t n : sizes) {
    const Tensor wide = f.random(DType::float32, {n}, "wide"),
                 narrow = f.make(DType::bfloat16, {n}), same = f.make(DType::float32, {n});
    ops::cast(f.context, wide, narrow);
    expect_close(narrow, values(wide), 0, unit_roundoff(DType::bfloat16));
    ops::cast(f.context, wide, same);
    expect_same_bytes(wide, same);
  }
}

TEST(Elementwise, CastKnowsEveryFloat16) {
  constexpr std::int64_t count = 65536;
  std::vector<Float16> all(count);
  std::vector<float> wide(count);
  for (std::int64_t i = 0; i < count; ++i) {
    all[i].bits = static_cast<std::uint16_t>(i);
    wide[i] = to_float(all[i]);
  }
  OpsFixture f;
  // With packs, and element by element.
  for (const std::int64_t first : {0, 1}) {
    const Tensor x = f.make(DType::float16, {count + 1}).rows(first, first + count),
                 y = f.make(DType::float32, {count + 1}).rows(first, first + count),
                 back = f.make(DType::float16, {count + 1}).rows(first, first + count);
    copy_bytes(f.context.stream(), x.data, all.data(), static_cast<std::size_t>(x.bytes()));
    ops::cast(f.context, x, y);
    ops::cast(f.context, y, back);
    std::vector<float> widened(count);
    std::vector<Float16> rounded(count);
    read_elements(y, 0, count, widened);
    read_elements(back, 0, count, rounded);
    for (std::int64_t i = 0; i < count; ++i) {
      if (std::isnan(wide[i])) {
        ASSERT_TRUE(std::isnan(widened[i]) && std::isnan(to_float(rounded[i]))) << i;
      } else {
        ASSERT_EQ(bits_of_float(widened[i]), bits_of_float(wide[i])) << i;
        ASSERT_EQ(rounded[i].bits, i);
      }
    }
  }
}

TEST(Elementwise, CastToFloat16IsToTheNearestEven) {
  // Ties at 1, at the end of the range (65520 is half way to 2^16), below 2^-14, and at half of the
  // smallest number.
  const Values in = {1 + 0x1p-11, 1 + 3 * 0x1p-11,   -1 - 0x1p-11, 65519,       65520,   -65520,
                     1e30,        0x1p-14 - 0x1p-25, 0x1p-24,      3 * 0x1p-25, 0x1p-25, 0x1.01p-25,
                     -0x1p-26};
  const Values out = {1,       1 + 0x1p-9, -1,      65504, INFINITY, -INFINITY, INFINITY,
                      0x1p-14, 0x1p-24,    0x1p-23, 0,     0x1p-24,  -0.0};
  OpsFixture f;
  const Tensor x = f.make(DType::float32, {13}), y = f.make(DType::float16, {13});
  assign(x, in);
  ops::cast(f.context, x, y);
  for (int i = 0; i < 13; ++i) {
    EXPECT_EQ(value_at(y, i), out[i]) << in[i];
    EXPECT_EQ(std::signbit(value_at(y, i)), std::signbit(out[i])) << in[i];
  }
  const Tensor nan = f.filled(DType::float32, {9}, NAN), narrow = f.make(DType::float16, {9});
  ops::cast(f.context, nan, narrow);
  for (const double value : values(narrow)) EXPECT_TRUE(std::isnan(value));
}

TEST(Elementwise, FillAndCopy) {
  OpsFixture f;
  for (const DType dtype : compute_types) {
    for (const std::int64_t n : sizes) {
      const Tensor x = f.make(dtype, {n}), y = f.make(dtype, {n});
      ops::fill(f.context, x, 0.75f);
      expect_close(x, Values(static_cast<std::size_t>(n), 0.75), 0);
      ops::copy(f.context, x, y);
      expect_same_bytes(x, y);
    }
  }
  const Tensor labels = f.random(DType::int32, {77777}, "labels", 1000),
               copied = f.make(DType::int32, {77777});
  ops::copy(f.context, labels, copied);
  expect_same_bytes(labels, copied);
}

// Starts at addresses without 16-byte alignment, some of them multiples of 4 bytes.
TEST(Elementwise, PartsThatBeginAnywhere) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t first : {1, 2, 3}) {
      for (const std::int64_t last : {first, std::int64_t{8}}) {
        constexpr std::int64_t n = 5003;
        SmallOpsFixture f;
        const Tensor x = f.random(dtype, {n + 8}, "x"), y = f.filled(dtype, {n + 8}, 7);
        const Values at = values(x);
        ops::relu_forward(f.context, x.rows(first, first + n), y.rows(last, last + n));
        Values expected(static_cast<std::size_t>(n + 8), 7.0);
        for (std::int64_t i = 0; i < n; ++i) expected[last + i] = std::max(at[first + i], 0.0);
        EXPECT_EQ(values(y), expected);
        ops::copy(f.context, x.rows(first, first + n), y.rows(last, last + n));
        for (std::int64_t i = 0; i < n; ++i) expected[last + i] = at[first + i];
        EXPECT_EQ(values(y), expected);
        ops::fill(f.context, y.rows(last, last + n - 1), -2);
        for (std::int64_t i = 0; i < n - 1; ++i) expected[last + i] = -2;
        EXPECT_EQ(values(y), expected);
      }
    }
  }
}

TEST(Elementwise, ChannelsAreDroppedOrFilledWithZeros) {
  for (const DType dtype : compute_types) {
    for (const auto& [from, to] : {std::pair(3, 8), std::pair(8, 3), std::pair(1, 8)}) {
      OpsFixture f;
      constexpr std::int64_t rows = 37;
      const Tensor x = f.random(dtype, {rows, from}, "x"), y = f.random(dtype, {rows, to}, "y");
      const Values in = values(x), before = values(y);
      Values assigned(before.size()), added = before;
      for (std::size_t i = 0; i < before.size(); ++i) {
        const std::size_t row = i / static_cast<std::size_t>(to),
                          channel = i % static_cast<std::size_t>(to);
        if (channel >= static_cast<std::size_t>(from)) continue;
        assigned[i] = in[row * static_cast<std::size_t>(from) + channel];
        added[i] += assigned[i];
      }
      ops::change_channels(f.context, x, y, ops::Write::add);
      expect_close(y, added, 0, unit_roundoff(dtype));
      ops::change_channels(f.context, x, y, ops::Write::assign);
      EXPECT_EQ(values(y), assigned);
    }
  }
}

TEST(Elementwise, CountsAreFilledAndAdded) {
  OpsFixture f;
  const Tensor counts = f.random(DType::int32, {40009}, "counts", 1 << 20),
               sum = f.make(DType::int32, {40009});
  ops::fill(f.context, sum, -3);
  ops::add(f.context, counts, sum);
  Values expected = values(counts);
  for (double& count : expected) count -= 3;
  EXPECT_EQ(values(sum), expected);
}

TEST(Elementwise, ExchangedTensorsHaveEachOthersBits) {
  for (const std::int64_t n : sizes) {
    OpsFixture f;
    const Tensor x = f.random(DType::float32, {n}, "x"), y = f.random(DType::float32, {n}, "y"),
                 was_x = f.random(DType::float32, {n}, "x"),
                 was_y = f.random(DType::float32, {n}, "y");
    for (const Tensor& odd : {x, was_x}) set_value(odd, n / 2, -0.0);
    ops::swap(f.context, x, y);
    expect_same_bytes(x, was_y);
    expect_same_bytes(y, was_x);
  }
}

TEST(Elementwise, ScaledCopyWritesAndAdds) {
  for (const std::int64_t n : sizes) {
    OpsFixture f;
    const Tensor x = f.random(DType::float32, {n}, "x"), y = f.random(DType::float32, {n}, "y");
    const float scale = 0.3f;
    const Values at = values(x);
    Values sum = values(y), bounds(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const double product = static_cast<double>(scale) * at[i];
      sum[i] += product;
      // Product and sum are rounded.
      bounds[i] = 0x1p-24 * (std::abs(sum[i]) + 1.01 * std::abs(product));
    }
    ops::scaled_copy(f.context, x, scale, y, ops::Write::add);
    expect_within(y, sum, bounds, "added");
    ops::scaled_copy(f.context, x, scale, y, ops::Write::assign);
    const Values written = values(y);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(written[i], scale * static_cast<float>(at[i]));
  }
}

TEST(Elementwise, AddBiasIsRoundedOnce) {
  for (const auto& [from, to] : {std::pair{DType::float32, DType::float32},
                                 {DType::bfloat16, DType::bfloat16},
                                 {DType::float32, DType::bfloat16}}) {
    for (const std::int64_t width : {1, 7, 61, 64, 512}) {
      OpsFixture f;
      const Tensor x = f.random(from, {7, width}, "x"),
                   bias = f.random(DType::float32, {width}, "bias"), y = f.make(to, {7, width});
      Values sum = values(x);
      const Values added = values(bias);
      for (std::int64_t i = 0; i < y.elements(); ++i) sum[i] += added[i % width];
      ops::add_bias(f.context, bias, x, y);
      // 16-bit types: rounded to float32, then to the type.
      expect_close(y, sum, 0, unit_roundoff(to) + (to == DType::bfloat16 ? 0x1p-24 : 0),
                   to_string(from) + " to " + to_string(to));
      if (from != to) continue;
      ops::add_bias(f.context, bias, x, x);
      expect_same_bytes(x, y, "in place");
    }
  }
}

TEST(Elementwise, ColumnSumsAreABiasGradient) {
  for (const DType dtype : compute_types) {
    for (const auto& [rows, width] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                      {7, 3},
                                      {131, 61},
                                      {1009, 130},
                                      {1003, 136}}) {
      OpsFixture f;
      const Tensor dy = f.random(dtype, {rows, width}, "dy"),
                   sums = f.random(DType::float32, {width}, "sums");
      const Values gradient = values(dy);
      for (const ops::Write write : {ops::Write::add, ops::Write::assign}) {
        Values expected(static_cast<std::size_t>(width), 0.0);
        if (write == ops::Write::add) expected = values(sums);
        Values terms = magnitudes(expected);
        for (std::int64_t i = 0; i < dy.elements(); ++i) {
          expected[i % width] += gradient[i];
          terms[i % width] += std::abs(gradient[i]);
        }
        ops::column_sums(f.context, dy, sums, write);
        expect_within(sums, expected,
                      // Partial sums of 128 rows, eight of them.
                      sum_bounds(expected, terms, 128 + 8, DType::float32));
      }
    }
  }
}

TEST(Elementwise, LayerScaleAndItsGradient) {
  for (const DType dtype : compute_types) {
    for (const auto& [rows, width] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 3}, {131, 61}, {1003, 136}}) {
      OpsFixture f;
      const Tensor x = f.random(dtype, {rows, width}, "x"),
                   other = f.random(dtype, {rows, width}, "residual or dy"),
                   scale = f.random(DType::float32, {width}, "scale"),
                   y = f.make(dtype, {rows, width}),
                   dscale = f.random(DType::float32, {width}, "dscale");
      const Values at = values(x), added = values(other), factor = values(scale);
      Values sum = added, bounds = added, product = added, expected = values(dscale);
      Values terms = magnitudes(expected);
      for (std::int64_t i = 0; i < y.elements(); ++i) {
        const double scaled = factor[i % width] * at[i], gradient = at[i] * added[i];
        sum[i] += scaled;
        // The product and the sum are rounded to float32, the result to its type.
        bounds[i] = unit_roundoff(dtype) * 1.01 * std::abs(sum[i]) +
                    0x1p-24 * (std::abs(sum[i]) + 1.01 * std::abs(scaled));
        product[i] *= factor[i % width];
        expected[i % width] += gradient;
        terms[i % width] += std::abs(gradient);
      }
      const std::string what =
          to_string(dtype) + " " + std::to_string(rows) + " x " + std::to_string(width);
      layer_scale_forward(f.context, scale, x, other, y);
      expect_within(y, sum, bounds, what);
      layer_scale_backward(f.context, scale, x, other, y, dscale, ops::Write::add);
      expect_close(y, product, 0, unit_roundoff(dtype) + 0x1p-24, what);
      // Rounded products, and partial sums of 128 rows, eight of them.
      expect_within(dscale, expected, sum_bounds(expected, terms, 128 + 8 + 1, DType::float32));
      const Tensor kept = f.make(dtype, {rows, width});
      ops::copy(f.context, y, kept);
      layer_scale_backward(f.context, scale, x, other, other, {}, ops::Write::assign);
      expect_same_bytes(other, kept, "in place");
    }
  }
}

TEST(Elementwise, MetaCountsAsTheCpu) {
  OpsFixture real, meta(DeviceKind::meta);
  for (OpsFixture* f : {&real, &meta}) {
    const Tensor x = f->filled(DType::float32, {101}, 1), y = f->filled(DType::bfloat16, {101}, 1);
    ops::relu_forward(f->context, x, x);
    ops::relu_backward(f->context, y, y, y);
    ops::add(f->context, x, x);
    ops::cast(f->context, x, y);
    ops::fill(f->context, y, 1);
    ops::copy(f->context, x, x);
    ops::scaled_copy(f->context, x, 2, x, ops::Write::add);
    ops::add_bias(f->context, x, x, y);
    ops::column_sums(f->context, y, x, ops::Write::assign);
    layer_scale_forward(f->context, x, x, x, x);
  }
  EXPECT_EQ(real.context.counters().bytes, meta.context.counters().bytes);
  EXPECT_EQ(meta.context.counters().calls, 10);
  EXPECT_EQ(real.workspace.peak_bytes(), 0);
  for (OpsFixture* f : {&real, &meta}) {
    const Tensor x = f->filled(DType::float32, {101}, 1);
    layer_scale_backward(f->context, x, x, x, x, x, ops::Write::assign);
  }
  EXPECT_EQ(real.context.counters().bytes, meta.context.counters().bytes);
  EXPECT_EQ(real.workspace.peak_bytes(), meta.workspace.peak_bytes());
}

}  // namespace
}  // namespace trireme::test
