// SPDX-License-Identifier: Apache-2.0
//
// Group norm against tests/kernels/norm_reference.hpp: values, gradients, agreement with batch
// norm, independence of the other images, added and in-place gradients, and meta.
// Tolerances are those of batch_norm_test.cpp.

#include "trireme/ops/normalization.hpp"

#include "norm_reference.hpp"

#include "trireme/base/check.hpp"

namespace trireme::test {
namespace {

struct GroupNormFixture {
  GroupNormFixture(const ops::GroupNorm& group_norm, DeviceKind kind = tested_device())
      : fixture(kind),
        op(group_norm),
        x(fixture.random(op.dtype, {op.batch, op.pixels, op.channels}, "x")),
        residual(fixture.random(op.dtype, x.shape, "residual")),
        y(fixture.make(op.dtype, x.shape)),
        dy(fixture.random(op.dtype, x.shape, "dy")),
        dx(fixture.make(op.dtype, x.shape)),
        dresidual(fixture.make(op.dtype, x.shape)),
        gamma(fixture.random(DType::float32, {op.channels}, "gamma")),
        beta(fixture.random(DType::float32, {op.channels}, "beta")),
        mean(fixture.make(DType::float32, {op.batch, op.groups})),
        rstd(fixture.make(DType::float32, {op.batch, op.groups})),
        dgamma(fixture.make(DType::float32, {op.channels})),
        dbeta(fixture.make(DType::float32, {op.channels})) {
    if (op.channels % op.groups != 0) return;
    if (const std::int64_t elements = ops::group_norm_mask_elements(fixture.context, op);
        elements > 0)
      mask = fixture.make(DType::uint8, {elements});
  }

  void forward() {
    ops::group_norm_forward(fixture.context, op, x, gamma, beta, residual, y, mean, rstd, mask);
  }
  void backward(const Tensor& to_dx, const Tensor& to_dresidual,
                ops::Write write = ops::Write::assign) {
    ops::group_norm_backward(fixture.context, op, x, y, dy, gamma, beta, mean, rstd, to_dx,
                             to_dresidual, dgamma, dbeta, mask, write);
  }
  void backward() { backward(dx, dresidual); }

  OpsFixture fixture;
  ops::GroupNorm op;
  Tensor x, residual, y, dy, dx, dresidual, gamma, beta, mean, rstd, dgamma, dbeta, mask;
};

TEST(GroupNorm, ReferenceIsItsOwnDerivative) {
  for (const bool relu : {false, true}) {
    for (const bool add : {false, true}) expect_reference_gradients({2, 3, 6, 2, relu, add});
  }
}

TEST(GroupNorm, EqualsReference) {
  struct Size {
    std::int64_t batch, pixels, channels, groups;
  };
  for (const DType dtype : compute_types) {
    for (const auto& [batch, pixels, channels, groups] : {Size{1, 2, 1, 1},
                                                          {3, 5, 6, 3},
                                                          {5, 49, 16, 4},
                                                          {2, 1, 64, 2},
                                                          {2, 397, 96, 32},
                                                          {70, 9, 256, 32},
                                                          {2, 401, 1024, 32},
                                                          {3, 17, 522, 2},
                                                          {1, 20011, 4, 2}}) {
      for (const bool flag : {false, true}) {
        SCOPED_TRACE(testing::Message() << batch << " x " << pixels << " x " << channels << " in "
                                        << groups << ", " << to_string(dtype) << flag);
        GroupNormFixture p({batch, pixels, channels, groups, flag, flag, dtype});
        p.forward();
        p.backward();
        const NormReference norm{batch, pixels, channels, groups, flag, flag};
        const Values x = values(p.x), gamma = values(p.gamma);
        const auto s = norm.statistics(x);
        const double single = 0x1p-24, rounding = 2 * unit_roundoff(dtype);
        Values rstd;
        for (const double v : s.variance) rstd.push_back(1 / std::sqrt(v + norm.epsilon));
        // A lane adds up to 70 numbers.
        expect_close(p.mean, s.mean, 32 * single, single, "mean");
        expect_close(p.rstd, rstd, 1e-30, 64 * single, "rstd");
        const Values y = norm.forward(x, gamma, values(p.beta), values(p.residual), s);
        expect_close(p.y, y, 64 * single * (1 + largest(y)), rounding, "y");
        const auto g = norm.backward(x, values(p.y), values(p.dy), gamma);
        const double scale = largest(g.dx) + largest(rstd) * largest(gamma) * largest(values(p.dy));
        expect_close(p.dx, g.dx, 128 * single * scale, rounding, "dx");
        if (flag) expect_close(p.dresidual, g.dresidual, 0, 0, "dresidual");
        expect_sums_close(p.dbeta, g.dbeta, g.dbeta_terms);
        Values terms = g.dgamma_terms;
        for (std::int64_t i = 0; i < channels; ++i) terms[i] += g.dbeta_terms[i];
        expect_sums_close(p.dgamma, g.dgamma, terms);
      }
    }
  }
}

TEST(GroupNorm, OneImageOfManyGroupsIsBatchNorm) {
  GroupNormFixture p({1, 401, 24, 24, true, true, DType::float32});
  p.forward();
  const ops::BatchNorm op{401, 24, true, true, DType::float32};
  const Tensor y = p.fixture.make(DType::float32, p.x.shape),
               mean = p.fixture.make(DType::float32, {24}),
               rstd = p.fixture.make(DType::float32, {24}),
               variance = p.fixture.make(DType::float32, {24});
  ops::batch_norm_statistics(p.fixture.context, op, p.x, {mean, rstd, variance});
  ops::batch_norm_apply(p.fixture.context, op, p.x, p.gamma, p.beta, p.residual, y,
                        {mean, rstd, variance}, {});
  // On the host both ops share their arithmetic, so their bits are equal. On a device nvcc may fuse
  // products and sums differently in two kernels. There the two results must be as close as each is
  // to the reference.
  if (tested_device() == DeviceKind::cuda)
    expect_close(p.y, values(y), 2 * 64 * 0x1p-24 * (1 + largest(values(y))));
  else
    expect_same_bytes(p.y, y);
}

TEST(GroupNorm, AnImageDoesNotDependOnItsNeighbours) {
  GroupNormFixture many({5, 37, 32, 8, true, true, DType::float32}),
      first({1, 37, 32, 8, true, true, DType::float32});
  many.forward();
  many.backward();
  first.forward();
  first.backward();
  expect_same_bytes(many.y.rows(0, 1), first.y, "y");
  expect_same_bytes(many.dx.rows(0, 1), first.dx, "dx");
}

TEST(GroupNorm, AddsParameterGradientsAndMayWriteOverDy) {
  GroupNormFixture p({3, 37, 32, 8, true, true, DType::float32});
  p.forward();
  p.backward();
  const Values dgamma = values(p.dgamma), dbeta = values(p.dbeta);
  const Tensor other = p.fixture.make(DType::float32, p.x.shape);
  p.backward(other, p.dy, ops::Write::add);
  expect_same_bytes(other, p.dx, "dx");
  expect_same_bytes(p.dy, p.dresidual, "dresidual on dy");
  for (std::int64_t c = 0; c < p.op.channels; ++c) {
    EXPECT_EQ(value_at(p.dgamma, c), 2 * dgamma[c]);
    EXPECT_EQ(value_at(p.dbeta, c), 2 * dbeta[c]);
  }
}

TEST(GroupNorm, GroupsMustDivideTheChannels) {
  GroupNormFixture p({1, 2, 6, 4, false, false, DType::float32}, DeviceKind::meta);
  EXPECT_THROW(p.forward(), InputError);
}

TEST(GroupNorm, MetaTakesTheSameWorkspace) {
  const ops::GroupNorm op{3, 1009, 48, 16, true, true, DType::float32};
  GroupNormFixture real(op), meta(op, DeviceKind::meta);
  for (GroupNormFixture* p : {&real, &meta}) {
    p->forward();
    p->backward();
  }
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), meta.fixture.workspace.peak_bytes());
  EXPECT_GT(meta.fixture.workspace.peak_bytes(), 0);
}

}  // namespace
}  // namespace trireme::test
