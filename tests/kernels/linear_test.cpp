// SPDX-License-Identifier: Apache-2.0
//
// Linear layers against double-precision products: forward, both gradients, float32 results, added
// weight gradients, prepared weights, and the memory and work that meta reports.
// Gradients are also checked against finite differences.
// Tolerances: the number of terms times the unit roundoff times the sum of magnitudes.

#include "trireme/ops/linear.hpp"

#include <fmt/format.h>

#include "reference.hpp"

namespace trireme {
namespace {

using ops::Linear;
using ops::MatrixOrder;
using ops::PreparedWeight;
using ops::Write;
using namespace test;

Shape weight_shape(const Linear& l) {
  return l.order == MatrixOrder::out_in ? Shape{l.out, l.in} : Shape{l.in, l.out};
}
std::int64_t weight_index(const Linear& l, std::int64_t k, std::int64_t n) {
  return l.order == MatrixOrder::out_in ? n * l.in + k : k * l.out + n;
}

// Calls visit(y, x, w) with flat indices for every product of a linear layer.
template <class Visit>
void for_each_product(const Linear& l, const Visit& visit) {
  for (std::int64_t m = 0; m < l.rows; ++m)
    for (std::int64_t n = 0; n < l.out; ++n)
      for (std::int64_t k = 0; k < l.in; ++k)
        visit(m * l.out + n, m * l.in + k, weight_index(l, k, n));
}

Values reference_forward(const Linear& l, const Values& x, const Values& w, const Values& bias) {
  Values y(l.rows * l.out);
  for (std::int64_t i = 0; i < l.rows * l.out; ++i) y[i] = bias.empty() ? 0 : bias[i % l.out];
  for_each_product(l, [&](auto o, auto i, auto k) { y[o] += x[i] * w[k]; });
  return y;
}
Values reference_backward_data(const Linear& l, const Values& dy, const Values& w) {
  Values dx(l.rows * l.in);
  for_each_product(l, [&](auto o, auto i, auto k) { dx[i] += dy[o] * w[k]; });
  return dx;
}
Values reference_backward_weight(const Linear& l, const Values& x, const Values& dy) {
  Values dw(l.in * l.out);
  for_each_product(l, [&](auto o, auto i, auto k) { dw[k] += dy[o] * x[i]; });
  return dw;
}
Values reference_column_sums(const Linear& l, const Values& dy) {
  Values sums(l.out);
  for (std::int64_t i = 0; i < l.rows * l.out; ++i) sums[i % l.out] += dy[i];
  return sums;
}

std::string name_of(const Linear& l) {
  return fmt::format("{} rows {} in {} out {} {}", to_string(l.dtype), l.rows, l.in, l.out,
                     l.order == MatrixOrder::out_in ? "out_in" : "in_out");
}

std::vector<Linear> cases() {
  std::vector<Linear> all;
  for (const DType dtype : compute_types) {
    for (const MatrixOrder order : {MatrixOrder::out_in, MatrixOrder::in_out}) {
      all.push_back({1, 1, 1, order, dtype});
      all.push_back({1, 64, 10, order, dtype});
      all.push_back({37, 31, 13, order, dtype});   // primes
      all.push_back({128, 96, 10, order, dtype});  // a classifier's head
      // Square: forward and backward use one format for a matrix and for its transpose.
      all.push_back({18, 32, 32, order, dtype});
      // More rows than one partial sum of the bias' gradient.
      all.push_back({300, 17, 129, order, dtype});
    }
  }
  return all;
}

struct LinearFixture {
  Tensor x, w, bias, dy;
  LinearFixture(OpsFixture& f, const Linear& l)
      : x(f.random(l.dtype, {l.rows, l.in}, "x")),
        w(f.random(l.dtype, weight_shape(l), "w")),
        bias(f.random(DType::float32, {l.out}, "bias")),
        dy(f.random(l.dtype, {l.rows, l.out}, "dy")) {}
};

TEST(Linear, ForwardIsTheMatrixProductAndTheBias) {
  for (const Linear& l : cases()) {
    OpsFixture f;
    const LinearFixture p(f, l);
    for (const bool with_bias : {false, true}) {
      const Tensor y = f.make(l.dtype, {l.rows, l.out});
      linear_forward(f.context, l, p.x, {p.w, 1, nullptr}, with_bias ? p.bias : Tensor{}, y);
      const Values x = values(p.x), w = values(p.w), bias = with_bias ? values(p.bias) : Values();
      const Values expected = reference_forward(l, x, w, bias);
      const Values scale = reference_forward(l, magnitudes(x), magnitudes(w), magnitudes(bias));
      expect_within(y, expected,
                    sum_bounds(expected, scale, static_cast<double>(l.in + 1), l.dtype),
                    name_of(l));
    }
  }
}

TEST(Linear, BackwardIsTheGradient) {
  for (const Linear& l : cases()) {
    OpsFixture f;
    const LinearFixture p(f, l);
    const Tensor dx = f.make(l.dtype, {l.rows, l.in}), dw = f.make(DType::float32, weight_shape(l)),
                 dbias = f.make(DType::float32, {l.out});
    linear_backward_data(f.context, l, p.dy, {p.w, 1, nullptr}, dx);
    linear_backward_weight(f.context, l, p.x, p.dy, dw, dbias, Write::assign);
    const Values x = values(p.x), w = values(p.w), dy = values(p.dy);
    const Values ax = magnitudes(x), aw = magnitudes(w), ady = magnitudes(dy);
    const auto check = [&](const Tensor& actual, const Values& expected, const Values& scale,
                           std::int64_t terms) {
      expect_within(actual, expected,
                    sum_bounds(expected, scale, static_cast<double>(terms), actual.dtype),
                    name_of(l));
    };
    check(dx, reference_backward_data(l, dy, w), reference_backward_data(l, ady, aw), l.out);
    check(dw, reference_backward_weight(l, x, dy), reference_backward_weight(l, ax, ady), l.rows);
    check(dbias, reference_column_sums(l, dy), reference_column_sums(l, ady), l.rows);
  }
}

TEST(Linear, AWideResultIsNotRounded) {
  for (Linear l : cases()) {
    OpsFixture f;
    const LinearFixture p(f, l);
    const Tensor y = f.make(l.dtype, {l.rows, l.out}), dx = f.make(l.dtype, {l.rows, l.in});
    linear_forward(f.context, l, p.x, {p.w, 1, nullptr}, p.bias, y);
    linear_backward_data(f.context, l, p.dy, {p.w, 1, nullptr}, dx);
    l.float32_result = true;
    const Tensor wide_y = f.make(DType::float32, y.shape),
                 wide_dx = f.make(DType::float32, dx.shape);
    linear_forward(f.context, l, p.x, {p.w, 1, nullptr}, p.bias, wide_y);
    linear_backward_data(f.context, l, p.dy, {p.w, 1, nullptr}, wide_dx);
    const Values x = values(p.x), w = values(p.w), bias = values(p.bias), dy = values(p.dy);
    const Values ax = magnitudes(x), aw = magnitudes(w), ady = magnitudes(dy);
    const auto check = [&](const Tensor& wide, const Tensor& narrow, const Values& expected,
                           const Values& scale, std::int64_t terms) {
      expect_within(wide, expected,
                    sum_bounds(expected, scale, static_cast<double>(terms), DType::float32),
                    name_of(l));
      // The narrow result, computed beside the wide one.
      expect_within(narrow, expected,
                    sum_bounds(expected, scale, static_cast<double>(terms), l.dtype), name_of(l));
    };
    check(wide_y, y, reference_forward(l, x, w, bias),
          reference_forward(l, ax, aw, magnitudes(bias)), l.in + 1);
    check(wide_dx, dx, reference_backward_data(l, dy, w), reference_backward_data(l, ady, aw),
          l.out);
  }
}

TEST(Linear, GradientsAgreeWithFiniteDifferences) {
  for (const Linear& l : cases()) {
    if (l.dtype != DType::float32) continue;
    OpsFixture f;
    const LinearFixture p(f, l);
    const Tensor dx = f.make(l.dtype, {l.rows, l.in}), dw = f.make(DType::float32, weight_shape(l)),
                 dbias = f.make(DType::float32, {l.out});
    linear_backward_data(f.context, l, p.dy, {p.w, 1, nullptr}, dx);
    linear_backward_weight(f.context, l, p.x, p.dy, dw, dbias, Write::assign);
    const Values x = values(p.x), w = values(p.w), bias = values(p.bias), dy = values(p.dy);
    const auto check = [&](const Tensor& gradient, const Values& at, const auto& loss) {
      const Values v = values(f.random(DType::float32, gradient.shape, "direction"));
      const double size = dot(magnitudes(values(gradient)), magnitudes(v));
      EXPECT_NEAR(dot(values(gradient), v), directional_derivative(loss, at, v), 1e-4 * (1 + size))
          << name_of(l);
    };
    check(dx, x, [&](const Values& at) { return dot(dy, reference_forward(l, at, w, bias)); });
    check(dw, w, [&](const Values& at) { return dot(dy, reference_forward(l, x, at, bias)); });
    check(dbias, bias, [&](const Values& at) { return dot(dy, reference_forward(l, x, w, at)); });
  }
}

TEST(Linear, AddingIsTheSumOfTwoAssignments) {
  for (const Linear& l : cases()) {
    OpsFixture f;
    const LinearFixture p(f, l);
    const Tensor other = f.random(l.dtype, {l.rows, l.out}, "other");
    Tensor dw[2], dbias[2];
    for (int i = 0; i < 2; ++i) {
      dw[i] = f.make(DType::float32, weight_shape(l));
      dbias[i] = f.make(DType::float32, {l.out});
      linear_backward_weight(f.context, l, p.x, i == 0 ? p.dy : other, dw[i], dbias[i],
                             Write::assign);
    }
    const auto sum = [](const Tensor& a, const Tensor& b) {
      Values total = values(a);
      const Values other = values(b);
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += other[i];
      return total;
    };
    const Values both_dw = sum(dw[0], dw[1]), both_dbias = sum(dbias[0], dbias[1]);
    linear_backward_weight(f.context, l, p.x, other, dw[0], dbias[0], Write::add);
    // The old value may join the sum before the last products. So its rounding is that of sums of
    // this size, not of the result alone.
    const double size = unit_roundoff(DType::float32) * 4 * static_cast<double>(l.rows);
    expect_close(dw[0], both_dw, size, size, name_of(l));
    expect_close(dbias[0], both_dbias, 0, unit_roundoff(DType::float32), name_of(l));
  }
}

TEST(Linear, PreparedWeightFollowsTheVersion) {
  for (const Linear& l : cases()) {
    OpsFixture f;
    const LinearFixture p(f, l);
    PreparedWeight prepared;
    for (std::uint64_t version = 1; version <= 3; ++version) {
      assign(p.w, values(f.random(l.dtype, weight_shape(l), fmt::format("w{}", version))));
      const Tensor y = f.make(l.dtype, {l.rows, l.out}), fresh_y = f.make(l.dtype, {l.rows, l.out});
      const Tensor dx = f.make(l.dtype, {l.rows, l.in}), fresh_dx = f.make(l.dtype, {l.rows, l.in});
      linear_forward(f.context, l, p.x, {p.w, version, &prepared}, p.bias, y);
      linear_forward(f.context, l, p.x, {p.w, 1, nullptr}, p.bias, fresh_y);
      linear_backward_data(f.context, l, p.dy, {p.w, version, &prepared}, dx);
      linear_backward_data(f.context, l, p.dy, {p.w, 1, nullptr}, fresh_dx);
      expect_same_bytes(y, fresh_y, name_of(l));
      expect_same_bytes(dx, fresh_dx, name_of(l));
    }
  }
}

TEST(Linear, MetaTakesTheMemoryAndCountsTheWorkOfTheReal) {
  for (const Linear& l : cases()) {
    OpsFixture real, meta(DeviceKind::meta);
    for (OpsFixture* f : {&real, &meta}) {
      const LinearFixture p(*f, l);
      const Tensor y = f->make(l.dtype, {l.rows, l.out}), dx = f->make(l.dtype, {l.rows, l.in});
      const Tensor dw = f->make(DType::float32, weight_shape(l)),
                   dbias = f->make(DType::float32, {l.out});
      PreparedWeight prepared;
      for (PreparedWeight* place : {&prepared, static_cast<PreparedWeight*>(nullptr)}) {
        linear_forward(f->context, l, p.x, {p.w, 1, place}, p.bias, y);
        linear_backward_data(f->context, l, p.dy, {p.w, 1, place}, dx);
        linear_backward_weight(f->context, l, p.x, p.dy, dw, dbias,
                               place == nullptr ? Write::add : Write::assign);
      }
    }
    EXPECT_EQ(meta.workspace.peak_bytes(), real.workspace.peak_bytes()) << name_of(l);
    EXPECT_EQ(meta.library.peak_bytes(), real.library.peak_bytes()) << name_of(l);
    EXPECT_EQ(meta.context.counters().flops, 6 * l.flops());
    EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes);
    EXPECT_EQ(real.workspace.used_bytes(), 0);
  }
}

}  // namespace
}  // namespace trireme
