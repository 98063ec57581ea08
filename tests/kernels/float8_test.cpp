// SPDX-License-Identifier: Apache-2.0
//
// float8: scales and codes against a search in double precision, and linear layers with float8
// operands against products of the rounded operands.
// The rounding is known to the last bit, so only the sums of a product have error bounds.
// Also: shapes that float8 cannot take, kept weights, gradients that are not finite, fused
// operations, and meta.

#include <fmt/format.h>

#include "float8_reference.hpp"
#include "reference.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme::test {
namespace {

using ops::Linear;
using ops::MatrixOrder;
using ops::PreparedWeight;
using ops::Write;

template <class T>
class Float8 : public testing::Test {};
using Both = testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8, Both);

/// The kernels' results for a bfloat16 matrix.
template <class T>
struct CastResult {
  double scale, inverse;
  Values codes, turned, rounded;
  CastResult(OpsFixture& f, const Tensor& x) {
    const std::int64_t columns = x.shape.back(), rows = x.elements() / columns;
    const Tensor maxima = f.make(DType::float32, {kernels::float8_partial_maxima}),
                 place = f.make(DType::float32, {2}),
                 straight = f.make(DType::uint8, {rows, columns}),
                 across = f.make(DType::uint8, {columns, rows}),
                 same = f.make(DType::bfloat16, x.shape);
    auto* const to = static_cast<kernels::Float8Scale*>(place.data);
    const auto* const from = x.as<BFloat16>();
    kernels::float8_scale<T>(f.context.stream(), {from, x.elements(), maxima.as<float>(), to});
    kernels::float8_cast<T>(f.context.stream(), {from, rows, columns, to, straight.data, false});
    kernels::float8_round<T>(f.context.stream(), {from, x.elements(), to, same.as<BFloat16>()});
    inverse = value_at(place, 0);
    scale = value_at(place, 1);
    codes = values(straight);
    rounded = values(same);
    if (rows % 16 != 0 || columns % 16 != 0) return;
    kernels::float8_cast<T>(f.context.stream(), {from, rows, columns, to, across.data, true});
    turned = values(across);
  }
};

template <class T>
void expect_reference(const Tensor& x, const CastResult<T>& made, const std::string& what) {
  const Values from = values(x);
  double largest = 0;
  for (const double value : from)
    largest = std::isnan(value) ? INFINITY : std::max(largest, std::abs(value));
  ASSERT_EQ(made.scale, reference_scale<T>(largest)) << what;
  ASSERT_EQ(made.inverse * made.scale, 1) << what;
  const std::int64_t columns = x.shape.back(), rows = x.elements() / columns;
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    const std::uint8_t code = nearest_code<T>(from[i] * made.scale);
    ASSERT_EQ(made.codes[i], code) << what << ", element " << i;
    const double number = float8_value<T>(code) * made.inverse;
    if (std::isnan(number)) {
      ASSERT_TRUE(std::isnan(made.rounded[i])) << what;
    } else {
      ASSERT_EQ(made.rounded[i], number) << what << ", element " << i;
    }
    if (!made.turned.empty()) {
      ASSERT_EQ(made.turned[i % columns * rows + i / columns], code) << what << ", element " << i;
    }
  }
}

TYPED_TEST(Float8, ScaleAndCodesAreTheReferences) {
  for (const Shape& shape : {Shape{1, 1}, Shape{1, 7}, Shape{37, 31}, Shape{16, 16}, Shape{48, 80},
                             Shape{64, 64}, Shape{128, 208}, Shape{3, 33000}}) {
    for (const double size : {1.0, 1e-30, 1e30, 0x1p-126}) {
      OpsFixture f;
      const Tensor x = f.random(DType::bfloat16, shape, "x", size);
      expect_reference(x, CastResult<TypeParam>(f, x),
                       fmt::format("{} times {}", to_string(shape), size));
    }
  }
}

TYPED_TEST(Float8, TheScaleIsTheGreatestThatFits) {
  const double greatest = float8_value<TypeParam>(max_finite_code<TypeParam>);
  for (const double largest : {greatest, greatest * (1 + 0x1p-7), greatest * (1 - 0x1p-7), 1.0,
                               1.75, 1.7578125, 0x1p127, 0x1p-133, 0x1p-126}) {
    OpsFixture f;
    const Tensor x = f.random(DType::bfloat16, {16, 32}, "x", largest / 8);
    // larger than all others in magnitude
    set_value(x, 300, -largest);
    const CastResult<TypeParam> made(f, x);
    expect_reference(x, made, fmt::format("{}", largest));
    EXPECT_LE(std::abs(value_at(x, 300)) * made.scale, greatest);
  }
}

TYPED_TEST(Float8, NothingButZerosHasScaleOne) {
  OpsFixture f;
  const CastResult<TypeParam> made(f, f.filled(DType::bfloat16, {32, 48}, 0));
  EXPECT_EQ(made.scale, 1);
  for (const double code : made.codes) EXPECT_EQ(code, 0);
}

TYPED_TEST(Float8, NonFiniteNumbersStaySo) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    for (const std::int64_t place : {0, 1000, 48 * 64 - 1}) {
      OpsFixture f;
      const Tensor x = f.random(DType::bfloat16, {48, 64}, "x");
      set_value(x, place, bad);
      const CastResult<TypeParam> made(f, x);
      EXPECT_EQ(made.scale, 1);
      EXPECT_TRUE(std::isnan(made.rounded[place]));
      expect_reference(x, made, fmt::format("{} at {}", bad, place));
    }
  }
}

// Products.

/// Hopper's tensor cores add float8 products with about 14 bits before the sums continue in float32
/// (DeepSeek-AI 2024, "DeepSeek-V3 technical report", section 3.3.2).
Values added_by(const Values& sizes, Values bounds) {
  constexpr double cores = 0x1p-13;
  for (std::size_t i = 0; i < bounds.size(); ++i)
    bounds[i] += tested_device() == DeviceKind::cuda ? cores * sizes[i] : 0;
  return bounds;
}

std::vector<Linear> cases() {
  std::vector<Linear> all;
  for (const MatrixOrder order : {MatrixOrder::out_in, MatrixOrder::in_out}) {
    for (const auto& [rows, in, out] :
         {std::array{16, 16, 16}, {32, 48, 16}, {128, 64, 192}, {80, 96, 32}})
      all.push_back({.rows = rows,
                     .in = in,
                     .out = out,
                     .order = order,
                     .dtype = DType::bfloat16,
                     .float8 = true});
  }
  return all;
}
std::string name_of(const Linear& l) {
  return fmt::format("rows {} in {} out {} {}", l.rows, l.in, l.out,
                     l.order == MatrixOrder::out_in ? "out_in" : "in_out");
}
Shape weight_shape(const Linear& l) {
  return l.order == MatrixOrder::out_in ? Shape{l.out, l.in} : Shape{l.in, l.out};
}

struct Results {
  Values y, dx, dw;
  Results(const Linear& l, const Values& x, const Values& w, const Values& bias, const Values& dy)
      : y(l.rows * l.out), dx(l.rows * l.in), dw(l.in * l.out) {
    for (std::int64_t m = 0; m < l.rows; ++m) {
      for (std::int64_t n = 0; n < l.out; ++n) {
        y[m * l.out + n] = bias[n];
        for (std::int64_t k = 0; k < l.in; ++k) {
          const std::int64_t at = l.order == MatrixOrder::out_in ? n * l.in + k : k * l.out + n;
          y[m * l.out + n] += x[m * l.in + k] * w[at];
          dx[m * l.in + k] += dy[m * l.out + n] * w[at];
          dw[at] += dy[m * l.out + n] * x[m * l.in + k];
        }
      }
    }
  }
};

/// Returns the largest magnitudes to which the numbers can round: half a unit more, which is 2^-4
/// or 2^-3 of a number, or half of the smallest one.
template <class T>
Values max_rounded(const Values& values) {
  const bool e4m3 = std::is_same_v<T, Float8E4M3>;
  Values sizes = magnitudes(values);
  const double relative = e4m3 ? 0x1p-4 : 0x1p-3,
               absolute = (e4m3 ? 0x1p-10 : 0x1p-17) /
                          reference_scale<T>(*std::max_element(sizes.begin(), sizes.end()));
  for (double& size : sizes) size += std::max(relative * size, absolute);
  return sizes;
}

struct Layer {
  Tensor x, w, bias, dy, y, dx, dw, dbias;
  Layer(OpsFixture& f, const Linear& l)
      : x(f.random(DType::bfloat16, {l.rows, l.in}, "x")),
        w(f.random(DType::bfloat16, weight_shape(l), "w", 0.02)),
        bias(f.random(DType::float32, {l.out}, "bias", 0.1)),
        dy(f.random(DType::bfloat16, {l.rows, l.out}, "dy", 1e-6)),
        y(f.make(DType::bfloat16, {l.rows, l.out})),
        dx(f.make(DType::bfloat16, {l.rows, l.in})),
        dw(f.make(DType::float32, weight_shape(l))),
        dbias(f.make(DType::float32, {l.out})) {}
  void run(OpsFixture& f, const Linear& l, PreparedWeight* prepared = nullptr,
           std::uint64_t version = 1, Write write = Write::assign) const {
    linear_forward(f.context, l, x, {w, version, prepared}, bias, y);
    linear_backward_data(f.context, l, dy, {w, version, prepared}, dx);
    linear_backward_weight(f.context, l, x, dy, dw, dbias, write);
  }
};

TEST(Float8Linear, MultipliesRoundedOperands) {
  for (const Linear& l : cases()) {
    ASSERT_TRUE(l.in_float8());
    OpsFixture f;
    const Layer layer(f, l);
    layer.run(f, l);
    const Values x = float8_rounded<Float8E4M3>(values(layer.x)),
                 w = float8_rounded<Float8E4M3>(values(layer.w)),
                 dy = float8_rounded<Float8E5M2>(values(layer.dy)), bias = values(layer.bias);
    const Results expected(l, x, w, bias, dy),
        sizes(l, magnitudes(x), magnitudes(w), magnitudes(bias), magnitudes(dy));
    // A device adds the bias in bfloat16, rounded once.
    Values y_bounds = added_by(
        sizes.y, sum_bounds(expected.y, sizes.y, static_cast<double>(l.in + 1), DType::bfloat16));
    for (std::size_t i = 0; i < y_bounds.size(); ++i)
      y_bounds[i] += unit_roundoff(DType::bfloat16) * std::abs(bias[i % bias.size()]);
    expect_within(layer.y, expected.y, y_bounds, name_of(l));
    const Values dx_bounds =
                     added_by(sizes.dx, sum_bounds(expected.dx, sizes.dx,
                                                   static_cast<double>(l.out), DType::bfloat16)),
                 dw_bounds =
                     added_by(sizes.dw, sum_bounds(expected.dw, sizes.dw,
                                                   static_cast<double>(l.rows), DType::float32));
    expect_within(layer.dx, expected.dx, dx_bounds, name_of(l));
    expect_within(layer.dw, expected.dw, dw_bounds, name_of(l));
    // Against products of the unrounded operands: the bound is the maximum effect of rounding the
    // operands, plus the bounds above.
    const Values raw_x = values(layer.x), raw_w = values(layer.w), raw_dy = values(layer.dy);
    const Values far_x = max_rounded<Float8E4M3>(raw_x), far_w = max_rounded<Float8E4M3>(raw_w),
                 far_dy = max_rounded<Float8E5M2>(raw_dy);
    const Results raw(l, raw_x, raw_w, bias, raw_dy),
        near(l, magnitudes(raw_x), magnitudes(raw_w), Values(bias.size()), magnitudes(raw_dy)),
        far(l, far_x, far_w, Values(bias.size()), far_dy);
    const auto moved = [](const Values& from, const Values& to, Values bounds) {
      for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] += to[i] - from[i];
      return bounds;
    };
    expect_within(layer.y, raw.y, moved(near.y, far.y, y_bounds), name_of(l));
    expect_within(layer.dx, raw.dx, moved(near.dx, far.dx, dx_bounds), name_of(l));
    expect_within(layer.dw, raw.dw, moved(near.dw, far.dw, dw_bounds), name_of(l));
    // The bias's gradient is a sum, not a product.
    Values sums(l.out), sum_sizes(l.out);
    for (std::size_t i = 0; i < raw_dy.size(); ++i) {
      sums[i % sums.size()] += raw_dy[i];
      sum_sizes[i % sums.size()] += std::abs(raw_dy[i]);
    }
    expect_within(layer.dbias, sums,
                  sum_bounds(sums, sum_sizes, static_cast<double>(l.rows), DType::float32),
                  name_of(l));
  }
}

TEST(Float8Linear, OtherExtentsAreMultipliedInBfloat16) {
  for (const auto& [rows, in, out] : {std::array{17, 32, 32}, {32, 24, 32}, {32, 32, 40}}) {
    Linear l{.rows = rows, .in = in, .out = out, .dtype = DType::bfloat16, .float8 = true};
    OpsFixture f;
    const Layer layer(f, l), plain(f, l);
    EXPECT_FALSE(l.in_float8());
    layer.run(f, l);
    l.float8 = false;
    plain.run(f, l);
    for (const auto& [a, b] :
         {std::pair(layer.y, plain.y), {layer.dx, plain.dx}, {layer.dw, plain.dw}})
      expect_same_bytes(a, b, name_of(l));
  }
}

TEST(Float8Linear, AKeptWeightFollowsItsVersion) {
  for (const Linear& l : cases()) {
    OpsFixture f;
    const Layer kept(f, l), fresh(f, l);
    PreparedWeight prepared;
    for (std::uint64_t version = 1; version <= 3; ++version) {
      assign(kept.w,
             values(f.random(DType::bfloat16, weight_shape(l), fmt::format("w{}", version))));
      copy_values(kept.w, fresh.w);
      for (int time = 0; time < 2; ++time) kept.run(f, l, &prepared, version);
      fresh.run(f, l);
      for (const auto& [a, b] :
           {std::pair(kept.y, fresh.y), {kept.dx, fresh.dx}, {kept.dw, fresh.dw}})
        expect_same_bytes(a, b, name_of(l));
    }
    // A bfloat16 layer with the same weight does not use the rounded one.
    Linear plain = l;
    plain.rows = l.rows - 1;
    const Tensor x = kept.x.rows(0, plain.rows), y = f.make(DType::bfloat16, {plain.rows, l.out}),
                 again = f.make(DType::bfloat16, y.shape);
    linear_forward(f.context, plain, x, {kept.w, 3, &prepared}, kept.bias, y);
    linear_forward(f.context, plain, x, {kept.w, 3, nullptr}, kept.bias, again);
    expect_same_bytes(y, again, name_of(l));
  }
}

TEST(Float8Linear, AGradientThatIsNotFiniteIsSeen) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const Linear l = cases()[1];
    OpsFixture f;
    const Layer layer(f, l);
    set_value(layer.dy, 5, bad);
    layer.run(f, l);
    for (const Tensor& gradient : {layer.dx, layer.dw}) {
      const Values found = values(gradient);
      EXPECT_TRUE(std::any_of(found.begin(), found.end(),
                              [](double value) { return !std::isfinite(value); }));
    }
  }
}

TEST(Float8Linear, EpiloguesFollowTheProduct) {
  for (const Linear& l : cases()) {
    OpsFixture f;
    const Layer layer(f, l);
    const Tensor residual = f.random(DType::bfloat16, layer.y.shape, "residual"),
                 added = f.make(DType::bfloat16, layer.y.shape);
    layer.run(f, l);
    linear_add_forward(f.context, l, layer.x, {layer.w, 1, nullptr}, layer.bias, residual, added);
    const Values y = values(layer.y), other = values(residual), bias = values(layer.bias);
    Values sums(y.size()), bounds(y.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      sums[i] = y[i] + other[i];
      // y, its product without the bias, the bias and the sum are each rounded once to bfloat16.
      bounds[i] =
          unit_roundoff(DType::bfloat16) *
          (2.1 * std::abs(y[i]) + 2.1 * std::abs(bias[i % bias.size()]) + 1.1 * std::abs(sums[i]));
    }
    expect_within(added, sums, bounds, name_of(l));
  }
}

TEST(Float8Linear, MetaTakesTheMemoryAndCountsTheWorkOfTheReal) {
  for (const Linear& l : cases()) {
    OpsFixture real, meta(DeviceKind::meta);
    for (OpsFixture* f : {&real, &meta}) {
      const Layer layer(*f, l);
      PreparedWeight prepared;
      for (PreparedWeight* place : {&prepared, static_cast<PreparedWeight*>(nullptr)})
        layer.run(*f, l, place, 1, place == nullptr ? Write::add : Write::assign);
    }
    EXPECT_EQ(meta.workspace.peak_bytes(), real.workspace.peak_bytes()) << name_of(l);
    EXPECT_EQ(meta.library.peak_bytes(), real.library.peak_bytes()) << name_of(l);
    EXPECT_EQ(meta.context.counters().flops, 6 * l.flops());
    EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes);
    EXPECT_EQ(real.workspace.used_bytes(), 0);
  }
}

}  // namespace
}  // namespace trireme::test
