// SPDX-License-Identifier: Apache-2.0
//
// Convolutions against the sum of their taps in double precision: forward, both gradients,
// statistics of the result, added weight gradients, prepared weights, and the memory and work that
// meta reports.
// Gradients are checked against the reference and against finite differences of the forward pass.
// Tolerances: the number of terms times the unit roundoff times the sum of magnitudes.

#include "trireme/ops/convolution.hpp"

#include <functional>

#include "reference.hpp"

#include "trireme/base/check.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme {
namespace {

using ops::Convolution;
using ops::PreparedWeight;
using ops::Weight;
using ops::Write;
using namespace test;

// Calls visit(output, input, weight) with flat indices for every product of a convolution.
template <class Visit>
void for_each_tap(const Convolution& c, const Visit& visit) {
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t i = 0; i < c.out_height(); ++i)
      for (std::int64_t j = 0; j < c.out_width(); ++j)
        for (std::int64_t r = 0; r < c.kernel; ++r)
          for (std::int64_t s = 0; s < c.kernel; ++s) {
            const std::int64_t row = i * c.stride - c.padding.before + r * c.dilation,
                               column = j * c.stride - c.padding.before + s * c.dilation;
            if (row < 0 || row >= c.height || column < 0 || column >= c.width) continue;
            for (std::int64_t k = 0; k < c.out_channels; ++k)
              for (std::int64_t ch = 0; ch < c.in_channels; ++ch) {
                visit(((b * c.out_height() + i) * c.out_width() + j) * c.out_channels + k,
                      ((b * c.height + row) * c.width + column) * c.in_channels + ch,
                      ((k * c.kernel + r) * c.kernel + s) * c.in_channels + ch);
              }
          }
}

Values reference_forward(const Convolution& c, const Values& x, const Values& w) {
  Values y(c.output_shape().elements());
  for_each_tap(c, [&](auto o, auto i, auto k) { y[o] += x[i] * w[k]; });
  return y;
}
Values reference_backward_data(const Convolution& c, const Values& dy, const Values& w) {
  Values dx(c.input_shape().elements());
  for_each_tap(c, [&](auto o, auto i, auto k) { dx[i] += dy[o] * w[k]; });
  return dx;
}
Values reference_backward_weight(const Convolution& c, const Values& x, const Values& dy) {
  Values dw(c.weight_shape().elements());
  for_each_tap(c, [&](auto o, auto i, auto k) { dw[k] += dy[o] * x[i]; });
  return dw;
}

Convolution dilated(Convolution c, std::int64_t dilation) {
  c.dilation = dilation;
  return c;
}

std::string name_of(const Convolution& c) {
  return fmt::format("{} {} -> {} kernel {} stride {} dilation {} padding {}", to_string(c.dtype),
                     to_string(c.input_shape()), to_string(c.output_shape()), c.kernel, c.stride,
                     c.dilation,
                     c.padding.before == c.padding.after
                         ? std::to_string(c.padding.before)
                         : fmt::format("{} and {}", c.padding.before, c.padding.after));
}

// Arguments: batch, height, width, input channels, output channels, kernel, stride, padding. Sizes
// are one, odd and prime, the layers of small residual networks, patches without overlap, and
// shapes with a hand-chosen implementation (few pixels, strided 1x1) at that and at other paddings.
std::vector<Convolution> cases() {
  const Convolution shapes[] = {
      {1, 1, 1, 1, 1, 1, 1, 0},
      {1, 1, 1, 1, 1, 3, 1, 1},
      {2, 7, 5, 3, 8, 3, 1, 1},
      {2, 13, 11, 7, 5, 3, 2, 1},
      {3, 8, 9, 16, 32, 3, 2, 1},
      {1, 9, 9, 5, 17, 7, 2, 3},
      {2, 8, 8, 16, 24, 1, 2, 0},
      {2, 7, 7, 32, 64, 1, 2, 0},
      {1, 5, 5, 32, 64, 1, 1, 0},
      {5, 4, 4, 64, 64, 3, 1, 1},
      {2, 6, 6, 3, 16, 7, 1, 3},
      {2, 7, 7, 4, 4, 3, 1, 0},
      {2, 28, 28, 1, 64, 3, 1, 1},
      {3, 7, 7, 32, 64, 3, 2, 1},
      {2, 9, 11, 13, 19, 3, 1, 3},
      {2, 32, 32, 3, 16, 7, 2, 3},
      {16, 7, 6, 32, 64, 3, 1, 1},
      {2, 16, 16, 3, 24, 4, 4, 0},
      {3, 12, 9, 32, 40, 2, 2, 0},
      {2, 8, 8, 16, 24, 1, 1, 1},
      {2, 8, 6, 32, 16, 1, 2, 1},
      {4, 16, 16, 32, 32, 3, 1, 0},
      {4, 16, 16, 32, 32, 3, 1, 2},
      {1, 9, 8, 8, 8, 5, 3, 4},
      // other zeros in front than behind, as in TensorFlow's "same"
      {2, 8, 9, 32, 16, 2, 1, {0, 1}},
      {3, 9, 8, 5, 7, 3, 2, {0, 1}},
      {2, 8, 8, 32, 32, 3, 1, {2, 0}},
      {1, 7, 6, 3, 8, 4, 2, {1, 2}},
      // dilated: of every number of channels, with strides, few pixels, and Winograd's shapes
      dilated({4, 16, 16, 32, 32, 3, 1, 1}, 2),
      dilated({4, 16, 16, 32, 32, 3, 1, 2}, 2),
      dilated({2, 9, 11, 13, 19, 3, 1, 3}, 3),
      dilated({2, 13, 11, 7, 5, 3, 2, 2}, 2),
      dilated({3, 8, 9, 16, 32, 3, 2, {2, 4}}, 3),
      dilated({2, 9, 8, 3, 8, 4, 3, {1, 5}}, 2),
      dilated({5, 4, 4, 64, 64, 3, 1, 2}, 2),
      dilated({1, 17, 15, 8, 8, 5, 1, 8}, 4),
      dilated({2, 5, 5, 32, 64, 1, 1, 0}, 3),
  };
  std::vector<Convolution> all;
  for (const DType dtype : compute_types) {
    for (Convolution c : shapes) {
      c.dtype = dtype;
      all.push_back(c);
    }
  }
  return all;
}

struct ConvolutionFixture {
  Convolution c;
  Tensor x, w, dy;
  ConvolutionFixture(OpsFixture& f, const Convolution& convolution)
      : c(convolution),
        x(f.random(c.dtype, c.input_shape(), "x")),
        w(f.random(c.dtype, c.weight_shape(), "w")),
        dy(f.random(c.dtype, c.output_shape(), "dy")) {}
};

double pixels(const Convolution& c) {
  return static_cast<double>(c.batch * c.out_height() * c.out_width());
}

TEST(Convolution, ForwardIsTheSumOfItsTaps) {
  for (const Convolution& c : cases()) {
    OpsFixture f;
    const ConvolutionFixture p(f, c);
    const Tensor y = f.make(c.dtype, c.output_shape());
    convolution_forward(f.context, c, p.x, {p.w, 1, nullptr}, y);
    const Values x = values(p.x), w = values(p.w), expected = reference_forward(c, x, w);
    const Values scale = reference_forward(c, magnitudes(x), magnitudes(w));
    expect_within(y, expected,
                  sum_bounds(expected, scale,
                             static_cast<double>(c.kernel * c.kernel * c.in_channels), c.dtype),
                  name_of(c));
  }
}

/// Returns the root mean square of the errors of a tensor.
double rms_error(const Tensor& t, const Values& expected) {
  const Values found = values(t);
  double squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = found[i] - expected[i];
    squares += error * error;
  }
  return std::sqrt(squares / static_cast<double>(expected.size()));
}

/// With 64 tiles, the fewest for which Winograd's algorithm is used. Without fusions the library's
/// direct sums are used; where the algorithm is not in use both are the same.
TEST(Convolution, WinogradsErrorIsAtMostFourTimesThatOfDirectSums) {
  for (const Convolution& c : {Convolution{4, 16, 16, 32, 32, 3, 1, 1, DType::float32},
                               Convolution{16, 7, 7, 64, 64, 3, 1, 1, DType::float32}}) {
    OpsFixture f;
    const ConvolutionFixture p(f, c);
    const Values x = values(p.x), w = values(p.w), dy = values(p.dy);
    const Values y = reference_forward(c, x, w), dx = reference_backward_data(c, dy, w),
                 dw = reference_backward_weight(c, x, dy);
    std::vector<double> errors[2];
    for (const bool fusions : {false, true}) {
      ops::Context context(f.context.stream(), f.workspace, f.library, f.context.target(),
                           {.fusions = fusions});
      const Tensor made_y = f.make(c.dtype, c.output_shape()),
                   made_dx = f.make(c.dtype, c.input_shape()),
                   made_dw = f.make(DType::float32, c.weight_shape());
      convolution_forward(context, c, p.x, {p.w, 1, nullptr}, made_y);
      convolution_backward_data(context, c, p.dy, {p.w, 1, nullptr}, {}, made_dx);
      convolution_backward_weight(context, c, p.x, p.dy, made_dw, Write::assign);
      errors[fusions ? 1 : 0] = {rms_error(made_y, y), rms_error(made_dx, dx),
                                 rms_error(made_dw, dw)};
    }
    const char* const passes[] = {"forward", "gradient of the input", "gradient of the weight"};
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_LE(errors[1][i], 4 * errors[0][i]) << name_of(c) << ", " << passes[i];
  }
}

/// Expects that add() adds `gradient`, which the same convolution has assigned before, to dw.
/// `magnitudes_of_gradient`: the sums of its products' magnitudes.
/// One rounding is allowed, that of the addition. On CUDA each of the two gradients has an error of
/// its own, since cuDNN's engines may add in another order in each run: that of a sum of `pixels`
/// products, made in the operands' type. A product also adds to dw before its last sums.
void expect_added(const OpsFixture& f, const Convolution& c, const Tensor& dw,
                  const Values& gradient, const Values& magnitudes_of_gradient,
                  const std::function<void()>& add) {
  Values sum = values(dw), bounds(sum.size());
  if (f.context.target() == DeviceKind::cuda) {
    Values terms = magnitudes_of_gradient;
    for (std::size_t i = 0; i < sum.size(); ++i) terms[i] += std::abs(sum[i]);
    bounds = sum_bounds(gradient, terms, pixels(c) + 1, c.dtype);
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] += gradient[i];
    bounds[i] = 2 * bounds[i] + unit_roundoff(DType::float32) * std::abs(sum[i]);
  }
  add();
  expect_within(dw, sum, bounds, name_of(c));
}

/// An input that is padded with channels of zeros has the output and the gradient of the weight
/// without them.
TEST(Convolution, PaddedChannelsChangeNothing) {
  constexpr std::int64_t channels = 8;
  for (const Convolution& c : cases()) {
    if (c.in_channels >= channels) continue;
    OpsFixture f;
    const ConvolutionFixture p(f, c);
    Convolution wide = c;
    wide.padded_channels = channels;
    const Tensor x = f.make(c.dtype, wide.input_shape()), y = f.make(c.dtype, c.output_shape()),
                 statistics_y = f.make(c.dtype, c.output_shape());
    ops::change_channels(f.context, p.x, x, Write::assign);
    convolution_forward(f.context, wide, x, {p.w, 1, nullptr}, y);
    const Values from = values(p.x), w = values(p.w), dy = values(p.dy);
    const double taps = static_cast<double>(c.kernel * c.kernel * c.in_channels);
    const Values expected = reference_forward(c, from, w),
                 bounds =
                     sum_bounds(expected, reference_forward(c, magnitudes(from), magnitudes(w)),
                                taps, c.dtype);
    expect_within(y, expected, bounds, name_of(c));
    const auto vector = [&] { return f.make(DType::float32, {c.out_channels}); };
    const ops::BatchStatistics made{vector(), vector(), vector()},
        alone{vector(), vector(), vector()};
    f.context.counters() = {};
    convolution_statistics_forward(f.context, wide, x, {p.w, 1, nullptr}, statistics_y, made);
    EXPECT_EQ(f.context.counters().flops, c.flops());
    expect_within(statistics_y, expected, bounds, name_of(c));
    batch_norm_statistics(f.context, batch_norm_after(c), statistics_y, alone);
    if (f.context.target() == DeviceKind::cpu) {
      expect_same_bytes(made.mean, alone.mean, name_of(c));
      expect_same_bytes(made.rstd, alone.rstd, name_of(c));
      expect_same_bytes(made.unbiased_variance, alone.unbiased_variance, name_of(c));
    }

    const Tensor dw = f.make(DType::float32, c.weight_shape());
    convolution_backward_weight(f.context, wide, x, p.dy, dw, Write::assign);
    const Values gradient = reference_backward_weight(c, from, dy),
                 scale = reference_backward_weight(c, magnitudes(from), magnitudes(dy));
    const DType made_in = tested_device() == DeviceKind::cuda ? c.dtype : DType::float32;
    expect_within(dw, gradient, sum_bounds(gradient, scale, pixels(c), made_in), name_of(c));
    expect_added(f, c, dw, values(dw), scale,
                 [&] { convolution_backward_weight(f.context, wide, x, p.dy, dw, Write::add); });
    EXPECT_EQ(f.workspace.used_bytes(), 0);
  }
}

double largest_magnitude(const Tensor& t) {
  double largest = 0;
  for (const double value : values(t)) largest = std::max(largest, std::abs(value));
  return largest;
}

/// A device may compute the statistics from sums in the epilogue, of about 100 terms each here,
/// with or without the roundings of y.
TEST(Convolution, StatisticsAreThoseOfItsResult) {
  for (const Convolution& c : cases()) {
    OpsFixture f;
    const ConvolutionFixture p(f, c);
    const Tensor y = f.make(c.dtype, c.output_shape()), alone = f.make(c.dtype, c.output_shape());
    const auto vector = [&] { return f.make(DType::float32, {c.out_channels}); };
    const ops::BatchStatistics made{vector(), vector(), vector()},
        expected{vector(), vector(), vector()};
    convolution_statistics_forward(f.context, c, p.x, {p.w, 1, nullptr}, y, made);
    convolution_forward(f.context, c, p.x, {p.w, 1, nullptr}, alone);
    batch_norm_statistics(f.context, batch_norm_after(c), y, expected);
    if (f.context.target() == DeviceKind::cpu) {
      expect_same_bytes(y, alone, name_of(c));
      expect_same_bytes(made.mean, expected.mean, name_of(c));
      expect_same_bytes(made.rstd, expected.rstd, name_of(c));
      expect_same_bytes(made.unbiased_variance, expected.unbiased_variance, name_of(c));
      continue;
    }
    // If y is added before it is rounded, mean and standard deviation are off by at most one
    // rounding of each number; less in the mean of them.
    const double rounding = 2 * unit_roundoff(c.dtype), scale = largest_magnitude(y);
    expect_close(made.mean, values(expected.mean), rounding * scale, 0, name_of(c));
    for (std::int64_t k = 0; k < c.out_channels; ++k) {
      const double deviation = 1 / value_at(expected.rstd, k);
      EXPECT_NEAR(1 / value_at(made.rstd, k), deviation, rounding * (scale + deviation))
          << name_of(c) << " channel " << k;
    }
  }
}

/// A device keeps the memory of the sums: what one layer leaves there, the next one finds.
TEST(Convolution, StatisticsOfOneLayerDoNotReachTheNext) {
  OpsFixture f;
  for (const std::int64_t channels : {64, 24, 128, 64}) {
    const Convolution c{2, 8, 8, 16, channels, 3, 1, 1, DType::bfloat16};
    const ConvolutionFixture p(f, c);
    const Tensor y = f.make(c.dtype, c.output_shape());
    const auto vector = [&] { return f.make(DType::float32, {channels}); };
    const ops::BatchStatistics expected{vector(), vector(), vector()};
    for (int use = 0; use < 2; ++use) {
      const ops::BatchStatistics made{vector(), vector(), vector()};
      convolution_statistics_forward(f.context, c, p.x, {p.w, 1, nullptr}, y, made);
      batch_norm_statistics(f.context, batch_norm_after(c), y, expected);
      // The sums may be those before y is rounded: at most a rounding of each number.
      const double rounding = 2 * unit_roundoff(c.dtype), scale = largest_magnitude(y);
      expect_close(made.mean, values(expected.mean), rounding * scale, 0, name_of(c));
      for (std::int64_t k = 0; k < channels; ++k) {
        const double deviation = 1 / value_at(expected.rstd, k);
        EXPECT_NEAR(1 / value_at(made.rstd, k), deviation, rounding * (scale + deviation))
            << name_of(c) << " channel " << k << " use " << use;
      }
    }
  }
}

/// For a device, meta plans the larger of both ways, in the types that support both.
TEST(Convolution, MetaTakesTheMemoryOfEitherWay) {
  /// Peak bytes of workspace and library.
  const auto peaks = [](DType dtype, ops::ContextOptions options) {
    OpsFixture f(DeviceKind::meta);
    ops::Context context(f.context.stream(), f.workspace, f.library, DeviceKind::cuda, options);
    const Convolution c{2, 8, 8, 16, 24, 3, 1, 1, dtype};
    const ConvolutionFixture p(f, c);
    const Tensor vector = f.make(DType::float32, {c.out_channels});
    for (int use = 0; use < 2; ++use)
      convolution_statistics_forward(context, c, p.x, {p.w, 1, nullptr},
                                     f.make(dtype, c.output_shape()), {vector, vector, vector});
    EXPECT_EQ(f.workspace.used_bytes(), 0);
    return std::pair(f.workspace.peak_bytes(), f.library.peak_bytes());
  };
  const auto apart = peaks(DType::float32, {}), either = peaks(DType::bfloat16, {});
  EXPECT_GE(apart.first, std::int64_t{128} << 20);
  EXPECT_EQ(apart.second, 0);
  EXPECT_GE(either.first, apart.first);
  // The sums are kept from one use to the next.
  EXPECT_EQ(either.second, 2 * 24 * 4);
  EXPECT_EQ(peaks(DType::bfloat16, {.deterministic = true}), apart);
  EXPECT_EQ(peaks(DType::bfloat16, {.fusions = false}), apart);
}

TEST(Convolution, BackwardDataIsTheGradientOfTheInput) {
  for (const Convolution& c : cases()) {
    OpsFixture f;
    const ConvolutionFixture p(f, c);
    const Tensor dx = f.make(c.dtype, c.input_shape());
    convolution_backward_data(f.context, c, p.dy, {p.w, 1, nullptr}, {}, dx);
    const Values dy = values(p.dy), w = values(p.w), expected = reference_backward_data(c, dy, w);
    const Values scale = reference_backward_data(c, magnitudes(dy), magnitudes(w));
    expect_within(dx, expected,
                  sum_bounds(expected, scale,
                             static_cast<double>(c.kernel * c.kernel * c.out_channels), c.dtype),
                  name_of(c));
  }
}

TEST(Convolution, BackwardDataAddsAnotherGradient) {
  for (const Convolution& c : cases()) {
    OpsFixture f;
    const ConvolutionFixture p(f, c);
    const Tensor alone = f.make(c.dtype, c.input_shape()), sum = f.make(c.dtype, c.input_shape()),
                 addend = f.random(c.dtype, c.input_shape(), "addend"), kept = f.copy_of(addend);
    convolution_backward_data(f.context, c, p.dy, {p.w, 1, nullptr}, {}, alone);
    convolution_backward_data(f.context, c, p.dy, {p.w, 1, nullptr}, addend, sum);
    expect_same_bytes(addend, kept, "the addend of " + name_of(c));
    // A device's product may add in another order, before its only rounding; elsewhere the gradient
    // is rounded before the sum.
    const Values gradient = values(alone), other = values(addend), dy = values(p.dy),
                 w = values(p.w);
    const Values scale = reference_backward_data(c, magnitudes(dy), magnitudes(w));
    Values expected(gradient),
        bounds = sum_bounds(gradient, scale,
                            static_cast<double>(c.kernel * c.kernel * c.out_channels), c.dtype);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] += other[i];
      // cuDNN's engines may add in another order in each run, so both gradients have an error.
      bounds[i] *= f.context.target() == DeviceKind::cuda ? 2 : 0;
      bounds[i] += unit_roundoff(c.dtype) * std::abs(expected[i]);
    }
    expect_within(sum, expected, bounds, name_of(c));
  }
}

TEST(Convolution, BackwardWeightIsTheGradientOfTheWeight) {
  for (const Convolution& c : cases()) {
    OpsFixture f;
    const ConvolutionFixture p(f, c);
    const Tensor dw = f.make(DType::float32, c.weight_shape());
    convolution_backward_weight(f.context, c, p.x, p.dy, dw, Write::assign);
    const Values x = values(p.x), dy = values(p.dy), expected = reference_backward_weight(c, x, dy);
    const Values scale = reference_backward_weight(c, magnitudes(x), magnitudes(dy));
    const DType made_in = tested_device() == DeviceKind::cuda
                              // cuDNN computes it in the operands' type and widens it.
                              ? c.dtype
                              : DType::float32;
    expect_within(dw, expected, sum_bounds(expected, scale, pixels(c), made_in), name_of(c));
  }
}

// Compares the gradients with directional derivatives of the reference's forward pass, by central
// differences.
TEST(Convolution, GradientsAgreeWithFiniteDifferences) {
  for (const Convolution& c : cases()) {
    if (c.dtype != DType::float32) continue;
    OpsFixture f;
    const ConvolutionFixture p(f, c);
    const Tensor dx = f.make(c.dtype, c.input_shape()),
                 dw = f.make(DType::float32, c.weight_shape());
    convolution_backward_data(f.context, c, p.dy, {p.w, 1, nullptr}, {}, dx);
    convolution_backward_weight(f.context, c, p.x, p.dy, dw, Write::assign);
    const Values x = values(p.x), w = values(p.w), dy = values(p.dy);
    const Values vx = values(f.random(c.dtype, c.input_shape(), "vx")),
                 vw = values(f.random(c.dtype, c.weight_shape(), "vw"));
    const double along_x = directional_derivative(
        [&](const Values& at) { return dot(dy, reference_forward(c, at, w)); }, x, vx);
    const double along_w = directional_derivative(
        [&](const Values& at) { return dot(dy, reference_forward(c, x, at)); }, w, vw);
    // The loss is linear in each argument, so the difference is exact up to double rounding. The
    // op's own error is n * u of the magnitudes.
    const double size_x = dot(magnitudes(values(dx)), magnitudes(vx)),
                 size_w = dot(magnitudes(values(dw)), magnitudes(vw));
    EXPECT_NEAR(dot(values(dx), vx), along_x, 1e-4 * (1 + size_x)) << name_of(c);
    EXPECT_NEAR(dot(values(dw), vw), along_w, 1e-4 * (1 + size_w)) << name_of(c);
  }
}

TEST(Convolution, AddingIsTheSumOfTwoAssignments) {
  for (const Convolution& c : cases()) {
    OpsFixture f;
    const ConvolutionFixture p(f, c);
    const Tensor other = f.random(c.dtype, c.input_shape(), "other");
    const Tensor one = f.make(DType::float32, c.weight_shape()),
                 two = f.make(DType::float32, c.weight_shape());
    convolution_backward_weight(f.context, c, p.x, p.dy, one, Write::assign);
    convolution_backward_weight(f.context, c, other, p.dy, two, Write::assign);
    expect_added(f, c, one, values(two),
                 reference_backward_weight(c, magnitudes(values(other)), magnitudes(values(p.dy))),
                 [&] { convolution_backward_weight(f.context, c, other, p.dy, one, Write::add); });
  }
}

TEST(Convolution, PreparedWeightFollowsTheVersionAndTheBatch) {
  for (const Convolution& c : cases()) {
    OpsFixture f(tested_device(), 32 * OpsFixture::mebibyte, SumOrder::fixed);
    const ConvolutionFixture p(f, c);
    PreparedWeight prepared;
    Convolution one_image = c;
    one_image.batch = 1;
    std::int64_t held = 0;
    for (std::uint64_t version = 1; version <= 3; ++version) {
      assign(p.w, values(f.random(c.dtype, c.weight_shape(), fmt::format("w{}", version))));
      for (const Convolution& shape :
           // Evaluation may use another batch, for which the memory format may differ.
           {c, one_image}) {
        const Tensor x = p.x.rows(0, shape.batch), dy = p.dy.rows(0, shape.batch);
        const Tensor y = f.make(c.dtype, shape.output_shape()),
                     fresh_y = f.make(c.dtype, shape.output_shape());
        const Tensor dx = f.make(c.dtype, shape.input_shape()),
                     fresh_dx = f.make(c.dtype, shape.input_shape());
        convolution_forward(f.context, shape, x, {p.w, version, &prepared}, y);
        convolution_forward(f.context, shape, x, {p.w, 1, nullptr}, fresh_y);
        convolution_backward_data(f.context, shape, dy, {p.w, version, &prepared}, {}, dx);
        convolution_backward_data(f.context, shape, dy, {p.w, 1, nullptr}, {}, fresh_dx);
        expect_same_bytes(y, fresh_y, name_of(shape));
        expect_same_bytes(dx, fresh_dx, name_of(shape));
      }
      if (version == 1) held = f.library.used_bytes();
    }
    EXPECT_EQ(f.library.used_bytes(), held) << "a new version takes no new memory: " << name_of(c);
    EXPECT_EQ(f.workspace.used_bytes(), 0) << name_of(c);
  }
}

TEST(Convolution, MetaTakesTheMemoryAndCountsTheWorkOfTheReal) {
  for (const Convolution& c : cases()) {
    OpsFixture real, meta(DeviceKind::meta);
    for (OpsFixture* f : {&real, &meta}) {
      const ConvolutionFixture p(*f, c);
      const Tensor y = f->make(c.dtype, c.output_shape()), dx = f->make(c.dtype, c.input_shape());
      const Tensor dw = f->make(DType::float32, c.weight_shape()),
                   addend = f->random(c.dtype, c.input_shape(), "addend");
      PreparedWeight prepared;
      for (PreparedWeight* place : {&prepared, static_cast<PreparedWeight*>(nullptr)}) {
        convolution_forward(f->context, c, p.x, {p.w, 1, place}, y);
        convolution_backward_data(f->context, c, p.dy, {p.w, 1, place},
                                  place == nullptr ? addend : Tensor{}, dx);
        convolution_backward_weight(f->context, c, p.x, p.dy, dw,
                                    place == nullptr ? Write::add : Write::assign);
      }
    }
    EXPECT_EQ(meta.workspace.peak_bytes(), real.workspace.peak_bytes()) << name_of(c);
    EXPECT_EQ(meta.library.peak_bytes(), real.library.peak_bytes()) << name_of(c);
    EXPECT_EQ(meta.context.counters().flops, 6 * c.flops());
    EXPECT_EQ(meta.context.counters().flops, real.context.counters().flops);
    EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes);
    EXPECT_EQ(meta.context.counters().calls, 6);
  }
}

}  // namespace
}  // namespace trireme
