// SPDX-License-Identifier: Apache-2.0
//
// Two batch norms in front of a ReLU as one op (ops/normalization.hpp), against
// tests/kernels/norm_reference.hpp: forward, backward, packs and unaligned tensors, masks, the bits
// of two norms one after the other, added gradients, and meta.

#include <memory>

#include "norm_reference.hpp"
#include "trireme/ops/normalization.hpp"

namespace trireme::test {
namespace {

struct Case {
  std::int64_t rows, channels;
  DType dtype;
};

/// All tensors of a block's norm and its shortcut's, forward and backward.
struct JoinedFixture {
  explicit JoinedFixture(const Case& c, DeviceKind kind = tested_device())
      : fixture(kind),
        op{c.rows, c.channels, true, true, c.dtype},
        y(fixture.make(c.dtype, {c.rows, c.channels})),
        dy(fixture.random(c.dtype, y.shape, "dy")),
        block(norm("block")),
        shortcut(norm("shortcut")) {
    block.dx = fixture.make(c.dtype, y.shape);
    shortcut.dx = dy;
    if (const std::int64_t elements = ops::batch_norm_mask_elements(fixture.context, op);
        elements > 0)
      mask = fixture.make(DType::uint8, {elements});
  }
  ops::JoinedBatchNorm norm(const std::string& name) {
    const auto vector = [&] { return fixture.make(DType::float32, {op.channels}); };
    return {.x = fixture.random(op.dtype, y.shape, name),
            .gamma = fixture.random(DType::float32, {op.channels}, name + ".gamma"),
            .beta = fixture.random(DType::float32, {op.channels}, name + ".beta"),
            .statistics = {vector(), vector(), vector()},
            .dx = {},
            .dgamma = vector(),
            .dbeta = vector(),
            .running = {vector(), vector(), 0.25f}};
  }
  void forward() {
    for (const ops::JoinedBatchNorm* each : {&block, &shortcut})
      ops::batch_norm_statistics(fixture.context, op, each->x, each->statistics);
    ops::batch_norm_apply_joined(fixture.context, op, block, shortcut, y, mask);
  }
  void backward(ops::Write write = ops::Write::assign) {
    ops::batch_norm_backward_joined(fixture.context, op, block, shortcut, y, dy, mask, write);
  }

  OpsFixture fixture;
  ops::BatchNorm op;
  Tensor y, dy;
  ops::JoinedBatchNorm block, shortcut;
  Tensor mask;
};

/// Compares one norm's gradients, whose gradient behind the activation is `g`.
void compare_gradients(const ops::JoinedBatchNorm& norm, const NormReference::Gradients& g,
                       const Values& rstd, const Values& dy) {
  // As in batch_norm_test.cpp.
  const double single = 0x1p-24;
  expect_close(
      norm.dx, g.dx,
      128 * single * (largest(g.dx) + largest(rstd) * largest(values(norm.gamma)) * largest(dy)),
      2 * unit_roundoff(norm.dx.dtype), "dx");
  expect_sums_close(norm.dbeta, g.dbeta, g.dbeta_terms);
  Values terms = g.dgamma_terms;
  // A rounded mean or rstd shifts each term.
  for (std::size_t c = 0; c < terms.size(); ++c) terms[c] += g.dbeta_terms[c];
  expect_sums_close(norm.dgamma, g.dgamma, terms);
}

void compare(JoinedFixture& p) {
  SCOPED_TRACE(testing::Message() << p.op.rows << " rows, " << p.op.channels << " channels, "
                                  << to_string(p.op.dtype));
  const NormReference of_block{1, p.op.rows, p.op.channels, p.op.channels, true, true},
      of_shortcut{1, p.op.rows, p.op.channels, p.op.channels, false, false};
  const Values x = values(p.block.x), shortcut_x = values(p.shortcut.x), dy = values(p.dy);
  const Values residual =
      of_shortcut.forward(shortcut_x, values(p.shortcut.gamma), values(p.shortcut.beta), {});
  const Values y = of_block.forward(x, values(p.block.gamma), values(p.block.beta), residual);
  p.forward();
  // The shortcut's result is not rounded.
  expect_close(p.y, y, 128 * 0x1p-24 * (1 + largest(y) + largest(residual)),
               2 * unit_roundoff(p.op.dtype), "y");
  const Values computed = values(p.y);
  p.backward();
  const auto g = of_block.backward(x, computed, dy, values(p.block.gamma));
  compare_gradients(p.block, g, values(p.block.statistics.rstd), dy);
  compare_gradients(
      p.shortcut,
      of_shortcut.backward(shortcut_x, shortcut_x, g.dresidual, values(p.shortcut.gamma)),
      values(p.shortcut.statistics.rstd), dy);
  for (const ops::JoinedBatchNorm* norm : {&p.block, &p.shortcut}) {
    for (std::int64_t c = 0; c < p.op.channels; ++c) {
      EXPECT_EQ(value_at(norm->running.mean, c), 0.25 * value_at(norm->statistics.mean, c));
      EXPECT_EQ(value_at(norm->running.variance, c),
                0.25 * value_at(norm->statistics.unbiased_variance, c));
    }
  }
}

TEST(JoinedNorms, EqualReference) {
  for (const DType dtype : compute_types) {
    for (const auto& [rows, channels] : {std::pair<std::int64_t, std::int64_t>{2, 1},
                                         {131, 3},
                                         {257, 33},
                                         {61, 64},
                                         {67, 521},
                                         {2311, 24},
                                         {197, 264},
                                         {301, 1024}}) {
      JoinedFixture p({rows, channels, dtype});
      compare(p);
    }
  }
}

TEST(JoinedNorms, TensorsMayBeginAnywhere) {
  for (const DType dtype : compute_types) {
    JoinedFixture p({301, 16, dtype});
    const auto move = [&](Tensor& t) {
      const Tensor place =
          p.fixture.make(dtype, {t.elements() + 1}).rows(1, t.elements() + 1).reshaped(t.shape);
      copy_values(t, place);
      t = place;
    };
    for (Tensor* t : {&p.block.x, &p.shortcut.x, &p.y, &p.dy, &p.block.dx}) move(*t);
    p.shortcut.dx = p.dy;
    p.mask = {};
    compare(p);
  }
}

TEST(JoinedNorms, BackwardBehindAMaskDoesNotReadY) {
  for (const DType dtype : compute_types) {
    for (const std::int64_t channels : {8, 24, 264}) {
      JoinedFixture p({517, channels, dtype}), reads({517, channels, dtype});
      reads.mask = {};
      p.forward();
      reads.forward();
      expect_same_bytes(p.y, reads.y, "y");
      if (p.mask.defined()) assign(p.y, Values(static_cast<std::size_t>(p.y.elements()), 0.0));
      p.backward();
      reads.backward();
      for (const auto& [a, b] :
           {std::pair(&p.block, &reads.block), std::pair(&p.shortcut, &reads.shortcut)}) {
        expect_same_bytes(a->dx, b->dx, "dx");
        expect_same_bytes(a->dgamma, b->dgamma, "dgamma");
        expect_same_bytes(a->dbeta, b->dbeta, "dbeta");
      }
    }
  }
}

/// With the same y. The device form adds the same numbers per member, in the same order, and its dx
/// has the same arithmetic.
TEST(JoinedNorms, BackwardHasTheBitsOfTwoNorms) {
  if (tested_device() == DeviceKind::cuda)
    GTEST_SKIP() << "nvcc may fuse other products and sums in another kernel";
  for (const DType dtype : compute_types) {
    for (const std::int64_t channels : {3, 24, 264}) {
      JoinedFixture joined({517, channels, dtype}), apart({517, channels, dtype});
      joined.forward();
      apart.forward();
      joined.backward();
      const auto backward = [&](const ops::BatchNorm& op, const ops::JoinedBatchNorm& norm,
                                const Tensor& dresidual, const Tensor& mask) {
        ops::batch_norm_backward(apart.fixture.context, op, norm.x, apart.y, apart.dy, norm.gamma,
                                 norm.beta, norm.statistics, norm.dx, dresidual, norm.dgamma,
                                 norm.dbeta, norm.running, mask, ops::Write::assign);
      };
      backward(apart.op, apart.block, apart.dy, apart.mask);
      ops::BatchNorm alone = apart.op;
      alone.relu = alone.add = false;
      backward(alone, apart.shortcut, {}, {});
      for (const auto& [a, b] :
           {std::pair(&joined.block, &apart.block), std::pair(&joined.shortcut, &apart.shortcut)}) {
        expect_same_bytes(a->dx, b->dx, "dx");
        expect_same_bytes(a->dgamma, b->dgamma, "dgamma");
        expect_same_bytes(a->dbeta, b->dbeta, "dbeta");
      }
    }
  }
}

TEST(JoinedNorms, ParameterGradientsAreAdded) {
  JoinedFixture once({101, 16, DType::float32}), twice({101, 16, DType::float32});
  once.forward();
  twice.forward();
  const Tensor dy = twice.fixture.copy_of(twice.dy);
  once.backward();
  twice.backward();
  copy_values(dy, twice.dy);
  twice.backward(ops::Write::add);
  for (const auto& [a, b] :
       {std::pair(&once.block, &twice.block), std::pair(&once.shortcut, &twice.shortcut)}) {
    for (const auto& [single, both] :
         {std::pair(a->dgamma, b->dgamma), std::pair(a->dbeta, b->dbeta),
          std::pair(a->running.mean, b->running.mean),
          std::pair(a->running.variance, b->running.variance)}) {
      for (std::int64_t c = 0; c < single.elements(); ++c)
        EXPECT_EQ(value_at(both, c), 2 * value_at(single, c));
    }
  }
}

/// Three passes over an activation less than two norms, backward, and two less forward.
TEST(JoinedNorms, MetaTakesTheSameWorkspaceAndCountsTheSame) {
  const Case c{77, 16, DType::bfloat16};
  JoinedFixture real(c), meta(c, DeviceKind::meta);
  for (JoinedFixture* each : {&real, &meta}) {
    each->forward();
    each->fixture.context.counters() = {};
    each->backward();
  }
  EXPECT_EQ(real.fixture.workspace.peak_bytes(), meta.fixture.workspace.peak_bytes());
  EXPECT_EQ(real.fixture.context.counters().bytes, meta.fixture.context.counters().bytes);
  EXPECT_EQ(meta.fixture.context.counters().bytes, 9.0 * static_cast<double>(meta.y.bytes()));
}

}  // namespace
}  // namespace trireme::test
