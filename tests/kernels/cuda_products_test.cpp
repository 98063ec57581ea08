// SPDX-License-Identifier: Apache-2.0
//
// Products with a fused residual, GELU or TF32 arithmetic, against double-precision references, and
// algorithms that a file keeps.
// If the library fuses nothing, the result must have the bits of separate ops; if it fuses, the
// error bounds must hold.

#include <algorithm>

#include <fmt/format.h>

#include "reference.hpp"
#include "trireme/ops/activation.hpp"
#include "trireme/ops/convolution.hpp"
#include "trireme/ops/dropout.hpp"
#include "trireme/ops/linear.hpp"

namespace trireme {
namespace {

using ops::Gelu;
using ops::Linear;
using ops::MatrixOrder;
using ops::Write;
using namespace test;

constexpr double u = 0x1p-24;
/// Error of the hyperbolic tangent in a GPU's own instruction (PTX ISA, tanh.approx.f32); it is
/// used with bfloat16 only.
constexpr double tanh_error = 0x1p-11;

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }
const double gelu_scale = std::sqrt(2 / std::acos(-1.0));
double gelu_argument(double z) { return 2 * gelu_scale * (z + 0.044715 * z * z * z); }
double gelu_argument_slope(double z) { return 2 * gelu_scale * (1 + 3 * 0.044715 * z * z); }
double gelu(double z) { return z * sigmoid(gelu_argument(z)); }
double gelu_slope(double z) {
  const double v = gelu_argument(z);
  return sigmoid(v) + z * sigmoid(v) * sigmoid(-v) * gelu_argument_slope(z);
}
double exact_gelu(double z) { return z / 2 * std::erfc(-z / std::sqrt(2)); }
// maximum of gelu', at z = 1.4
constexpr double max_gelu_slope = 1.13;

bool is_cuda() { return tested_device() == DeviceKind::cuda; }

/// Returns the type of a layer's bias: on CUDA also that of the layer.
DType bias_type(const Linear& l) {
  return is_cuda() && l.order == MatrixOrder::in_out ? l.dtype : DType::float32;
}

struct Layer {
  Tensor x, w, bias, dy, z, y;
  Layer(OpsFixture& f, const Linear& l)
      : x(f.random(l.dtype, {l.rows, l.in}, "x")),
        w(f.random(l.dtype,
                   l.order == MatrixOrder::out_in ? Shape{l.out, l.in} : Shape{l.in, l.out}, "w",
                   1 / std::sqrt(static_cast<double>(l.in)))),
        bias(f.random(bias_type(l), {l.out}, "bias")),
        dy(f.random(l.dtype, {l.rows, l.out}, "dy")),
        z(f.make(l.dtype, {l.rows, l.out})),
        y(f.make(l.dtype, {l.rows, l.out})) {}
};

std::vector<Linear> cases() {
  std::vector<Linear> all;
  for (const DType dtype : compute_types) {
    for (const MatrixOrder order : {MatrixOrder::out_in, MatrixOrder::in_out}) {
      all.push_back({1, 1, 1, order, dtype});
      all.push_back({37, 31, 13, order, dtype});  // rows that no library fuses
      all.push_back({64, 40, 96, order, dtype});
      all.push_back({129, 64, 256, order, dtype});
    }
  }
  return all;
}

std::string name_of(const Linear& l) {
  return fmt::format("{} rows {} in {} out {} {}", to_string(l.dtype), l.rows, l.in, l.out,
                     l.order == MatrixOrder::out_in ? "out_in" : "in_out");
}

/// Sums of products, and of their magnitudes: y (x w) or dx (dy w).
struct Sums {
  Values value, scale;
};
Sums forward_sums(const Linear& l, const Values& x, const Values& w, const Values& bias) {
  Sums sums{Values(l.rows * l.out), Values(l.rows * l.out)};
  for (std::int64_t m = 0; m < l.rows; ++m) {
    for (std::int64_t n = 0; n < l.out; ++n) {
      double value = bias.empty() ? 0 : bias[n], scale = std::abs(value);
      for (std::int64_t k = 0; k < l.in; ++k) {
        const double product =
            x[m * l.in + k] * w[l.order == MatrixOrder::out_in ? n * l.in + k : k * l.out + n];
        value += product;
        scale += std::abs(product);
      }
      sums.value[m * l.out + n] = value;
      sums.scale[m * l.out + n] = scale;
    }
  }
  return sums;
}

TEST(LinearAdd, ForwardIsTheProductAndTheResidual) {
  for (const Linear& l : cases()) {
    for (const bool with_bias : {false, true}) {
      SmallOpsFixture f;
      const Layer layer(f, l);
      const Tensor bias = with_bias ? layer.bias : Tensor{},
                   residual = f.random(l.dtype, {l.rows, l.out}, "residual", 3);
      linear_add_forward(f.context, l, layer.x, {layer.w, 1, nullptr}, bias, residual, layer.y);
      const Sums product = forward_sums(l, values(layer.x), values(layer.w), {});
      const Values product_bounds =
                       sum_bounds(product.value, product.scale, static_cast<double>(l.in), l.dtype),
                   added = values(residual), shift = values(layer.bias);
      // The product may be rounded to its type before bias and residual are added.
      Values expected, bounds;
      for (std::size_t i = 0; i < added.size(); ++i) {
        const double shifted = with_bias ? shift[i % shift.size()] : 0;
        expected.push_back(product.value[i] + shifted + added[i]);
        bounds.push_back(product_bounds[i] +
                         3 * u * (product.scale[i] + std::abs(shifted) + std::abs(added[i])) +
                         1.01 * unit_roundoff(l.dtype) *
                             (std::abs(expected[i]) + product_bounds[i]));
      }
      expect_within(layer.y, expected, bounds, name_of(l));
      if (is_cuda()) continue;
      const Tensor y = f.make(l.dtype, layer.y.shape);
      linear_forward(f.context, l, layer.x, {layer.w, 1, nullptr}, {}, y);
      dropout_add(f.context, {}, y, bias, residual, y);
      expect_same_bytes(layer.y, y, name_of(l));
    }
  }
}

TEST(LinearGelu, ForwardIsTheProductAndItsGelu) {
  for (const Linear& l : cases()) {
    for (const bool with_bias : {false, true}) {
      SmallOpsFixture f;
      const Layer layer(f, l);
      const Tensor bias = with_bias ? layer.bias : Tensor{};
      linear_gelu_forward(f.context, l, layer.x, {layer.w, 1, nullptr}, bias, layer.z, layer.y);
      const Sums sums = forward_sums(l, values(layer.x), values(layer.w),
                                     with_bias ? values(layer.bias) : Values());
      const Values z_bounds =
          sum_bounds(sums.value, sums.scale, static_cast<double>(l.in + 1), l.dtype);
      expect_within(layer.z, sums.value, z_bounds, name_of(l));
      Values expected, bounds;
      for (std::size_t i = 0; i < sums.value.size(); ++i) {
        const double z = sums.value[i],
                     by_tangent = l.dtype == DType::bfloat16 ? std::abs(z) * tanh_error / 2 : 0;
        expected.push_back(gelu(z));
        bounds.push_back(
            max_gelu_slope * z_bounds[i] + by_tangent +
            ((8 + 5 * std::abs(gelu_argument(z))) * u + 1.01 * unit_roundoff(l.dtype)) *
                std::abs(gelu(z)));
      }
      expect_within(layer.y, expected, bounds, name_of(l));
      if (is_cuda()) continue;
      const Tensor z = f.make(l.dtype, layer.z.shape), y = f.make(l.dtype, layer.y.shape);
      linear_forward(f.context, l, layer.x, {layer.w, 1, nullptr}, bias, z);
      gelu_forward(f.context, z, y);
      expect_same_bytes(layer.z, z, name_of(l));
      expect_same_bytes(layer.y, y, name_of(l));
    }
  }
}

TEST(LinearGelu, BackwardIsTheGradientTimesTheSlope) {
  for (const Linear& l : cases()) {
    SmallOpsFixture f;
    const Layer layer(f, l);
    const Tensor z = f.random(l.dtype, {l.rows, l.in}, "z", 1.5), dz = f.make(l.dtype, z.shape),
                 dx = f.make(l.dtype, z.shape);
    linear_backward_data_gelu(f.context, l, layer.dy, {layer.w, 1, nullptr}, z, dz);
    // dx = dy w is the forward pass of the transposed layer.
    const Linear back{l.rows, l.out, l.in,
                      l.order == MatrixOrder::out_in ? MatrixOrder::in_out : MatrixOrder::out_in,
                      l.dtype};
    const Sums sums = forward_sums(back, values(layer.dy), values(layer.w), {});
    const Values dx_bounds =
                     sum_bounds(sums.value, sums.scale, static_cast<double>(l.out), l.dtype),
                 at = values(z);
    Values expected, bounds;
    for (std::size_t i = 0; i < at.size(); ++i) {
      const double v = gelu_argument(at[i]), first = sigmoid(v),
                   second = std::abs(at[i]) * first * sigmoid(-v) * gelu_argument_slope(at[i]);
      // Error of the slope: roundings as in activation_test.cpp. With the tangent t = 2 sigmoid(v)
      // - 1: the errors of (1 + t) / 2 and of z (1 - t^2) / 4 times v'.
      const double slope_error =
          ((9 + 5 * std::abs(v)) * first + (20 + 5 * std::abs(v)) * second) * u +
          (l.dtype == DType::bfloat16
               ? tanh_error * (0.5 + std::abs(at[i]) * gelu_argument_slope(at[i]) / 2)
               : 0);
      expected.push_back(sums.value[i] * gelu_slope(at[i]));
      bounds.push_back(max_gelu_slope * dx_bounds[i] +
                       (std::abs(sums.value[i]) + dx_bounds[i]) * slope_error +
                       1.01 * unit_roundoff(l.dtype) * std::abs(expected[i]));
    }
    expect_within(dz, expected, bounds, name_of(l));
    if (is_cuda()) continue;
    linear_backward_data(f.context, l, layer.dy, {layer.w, 1, nullptr}, dx);
    gelu_backward(f.context, z, dx, dx);
    expect_same_bytes(dz, dx, name_of(l));
  }
}

TEST(LinearGelu, GradientsAgreeWithFiniteDifferences) {
  for (const Gelu form : {Gelu::tanh, Gelu::exact}) {
    const Linear up{5, 7, 16}, down{5, 16, 3};
    OpsFixture f;
    const Layer first(f, up);
    const Tensor w = f.random(DType::float32, {3, 16}, "down"),
                 dout = f.random(DType::float32, {5, 3}, "dout");
    const Tensor dz = f.make(DType::float32, {5, 16}), dx = f.make(DType::float32, {5, 7}),
                 dw = f.make(DType::float32, {16, 7}), dbias = f.make(DType::float32, {16});
    linear_gelu_forward(f.context, up, first.x, {first.w, 1, nullptr}, first.bias, first.z, first.y,
                        form);
    linear_backward_data_gelu(f.context, down, dout, {w, 1, nullptr}, first.z, dz, form);
    linear_backward_weight(f.context, up, first.x, dz, dw, dbias, Write::assign);
    linear_backward_data(f.context, up, dz, {first.w, 1, nullptr}, dx);
    const auto loss = [&](const Values& x, const Values& up_w, const Values& bias) {
      Values active = forward_sums(up, x, up_w, bias).value;
      for (double& value : active) value = form == Gelu::tanh ? gelu(value) : exact_gelu(value);
      return dot(values(dout), forward_sums(down, active, values(w), {}).value);
    };
    const Values x = values(first.x), up_w = values(first.w), bias = values(first.bias);
    const auto check = [&](const Tensor& gradient, const Values& at, const auto& of) {
      const Values v = values(f.random(DType::float32, gradient.shape, "direction"));
      EXPECT_NEAR(dot(values(gradient), v), directional_derivative(of, at, v),
                  1e-4 * (1 + dot(magnitudes(values(gradient)), magnitudes(v))));
    };
    check(dx, x, [&](const Values& at) { return loss(at, up_w, bias); });
    check(dw, up_w, [&](const Values& at) { return loss(x, at, bias); });
    check(dbias, bias, [&](const Values& at) { return loss(x, up_w, at); });
  }
}

TEST(LinearGelu, MetaTakesTheMemoryAndCountsTheWorkOfTheReal) {
  for (const Linear& l : cases()) {
    SmallOpsFixture real, meta(DeviceKind::meta);
    for (OpsFixture* f : {static_cast<OpsFixture*>(&real), static_cast<OpsFixture*>(&meta)}) {
      const Layer layer(*f, l);
      const Tensor z = f->random(l.dtype, {l.rows, l.in}, "z"), dz = f->make(l.dtype, z.shape);
      linear_add_forward(f->context, l, layer.x, {layer.w, 1, nullptr}, layer.bias, layer.z,
                         layer.y);
      for (const Gelu form : {Gelu::tanh, Gelu::exact}) {
        linear_gelu_forward(f->context, l, layer.x, {layer.w, 1, nullptr}, layer.bias, layer.z,
                            layer.y, form);
        linear_backward_data_gelu(f->context, l, layer.dy, {layer.w, 1, nullptr}, z, dz, form);
      }
    }
    EXPECT_EQ(meta.workspace.peak_bytes(), real.workspace.peak_bytes()) << name_of(l);
    EXPECT_EQ(meta.context.counters().flops, 5 * l.flops());
    EXPECT_EQ(meta.context.counters().flops, real.context.counters().flops);
    EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes);
    EXPECT_EQ(meta.context.counters().calls, real.context.counters().calls);
    EXPECT_EQ(real.workspace.used_bytes(), 0);
  }
}

/// Returns a context with other options on the memory of a fixture.
ops::Context with_options(OpsFixture& f, ops::ContextOptions options) {
  return {test_stream(tested_device()), f.workspace, f.library, ops::target_of(tested_device()),
          options};
}

TEST(Tfloat32, ProductsKeepTenBitsOnTensorCoresAndAllElsewhere) {
  for (const MatrixOrder order : {MatrixOrder::out_in, MatrixOrder::in_out}) {
    const Linear l{64, 256, 96, order};
    OpsFixture f;
    const Layer layer(f, l);
    ops::Context rounding = with_options(f, {.tfloat32 = true});
    const Tensor y = f.make(l.dtype, layer.y.shape);
    linear_forward(f.context, l, layer.x, {layer.w, 1, nullptr}, layer.bias, layer.y);
    linear_forward(rounding, l, layer.x, {layer.w, 1, nullptr}, layer.bias, y);
    const Sums sums = forward_sums(l, values(layer.x), values(layer.w), values(layer.bias));
    Values bounds = sum_bounds(sums.value, sums.scale, static_cast<double>(l.in + 1), l.dtype);
    expect_within(layer.y, sums.value, bounds, "float32 " + name_of(l));
    for (std::size_t i = 0; i < bounds.size(); ++i)
      // TF32 cuts each operand to 10 bits behind the binary point.
      bounds[i] += 2.01 * 0x1p-10 * sums.scale[i];
    expect_within(y, sums.value, bounds, "tfloat32 " + name_of(l));
    EXPECT_EQ(bytes_of(y) == bytes_of(layer.y), !is_cuda());
  }
}

TEST(Tfloat32, ConvolutionsAreWithinTheirBounds) {
  const ops::Convolution c{4, 8, 8, 16, 32, 3, 1, 1, DType::float32};
  OpsFixture f;
  const Tensor x = f.random(c.dtype, c.input_shape(), "x"),
               w = f.random(c.dtype, c.weight_shape(), "w"), y = f.make(c.dtype, c.output_shape()),
               rounded = f.make(c.dtype, c.output_shape());
  ops::Context rounding = with_options(f, {.tfloat32 = true});
  convolution_forward(f.context, c, x, {w, 1, nullptr}, y);
  convolution_forward(rounding, c, x, {w, 1, nullptr}, rounded);
  // At most 9 * 16 products |x| |w|, cut as above, each bounded by the largest magnitudes.
  const auto largest = [](const Values& v) { return *std::max_element(v.begin(), v.end()); };
  const double scale = 9 * 16 * largest(magnitudes(values(x))) * largest(magnitudes(values(w)));
  expect_close(rounded, values(y), 2.01 * 0x1p-10 * scale);
  if (!is_cuda()) expect_same_bytes(rounded, y);
}

TEST(KeptAlgorithms, GiveTheSameResultsInAnotherContext) {
  const Linear l{256, 128, 192, MatrixOrder::out_in, DType::bfloat16};
  const ops::Convolution c{4, 16, 16, 32, 32, 3, 1, 1, DType::bfloat16};
  OpsFixture f;
  const Layer layer(f, l);
  const Tensor image = f.random(c.dtype, c.input_shape(), "image"),
               kernel = f.random(c.dtype, c.weight_shape(), "kernel");
  struct Results {
    Tensor y, dw, image;
    ops::AlgorithmTable algorithms;
  };
  const auto run = [&](const ops::AlgorithmTable& known) {
    ops::Context context = with_options(f, {});
    context.algorithms().add_missing(known);
    const Results results{f.make(l.dtype, layer.y.shape),
                          f.make(DType::float32, layer.w.shape),
                          f.make(c.dtype, c.output_shape()),
                          {}};
    linear_forward(context, l, layer.x, {layer.w, 1, nullptr}, layer.bias, results.y);
    linear_backward_weight(context, l, layer.x, layer.dy, results.dw, {}, Write::assign);
    convolution_forward(context, c, image, {kernel, 1, nullptr}, results.image);
    return Results{results.y, results.dw, results.image, context.algorithms()};
  };
  const Results first = run({}),
                second = run(ops::AlgorithmTable::parse(first.algorithms.to_text()));
  expect_same_bytes(first.y, second.y);
  expect_same_bytes(first.dw, second.dw);
  // An engine of cuDNN may add in another order in each run: two errors of float32 sums of 9 * 32
  // products, and of the rounding to bfloat16.
  if (is_cuda()) {
    const Values images = values(first.image), x = magnitudes(values(image)),
                 w = magnitudes(values(kernel));
    const double scale =
        9 * 32 * *std::max_element(x.begin(), x.end()) * *std::max_element(w.begin(), w.end());
    expect_close(second.image, images, 2 * (9 * 32 + 1) * u * scale, 2.02 * unit_roundoff(c.dtype));
  } else {
    expect_same_bytes(first.image, second.image);
  }
  // The second context read every algorithm from the file.
  EXPECT_EQ(first.algorithms, second.algorithms);
  if (!is_cuda()) {
    EXPECT_EQ(first.algorithms.size(), 0u);
  }
}

}  // namespace
}  // namespace trireme
