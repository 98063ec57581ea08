// SPDX-License-Identifier: Apache-2.0
//
// Orthogonalized matrices against Newton-Schulz's iteration in double precision: wide, tall and
// square ones, of odd extents, in both types; and a matrix of zeros.
#include "trireme/ops/orthogonalize.hpp"

#include <utility>

#include "reference.hpp"
#include "support/update_rules.hpp"

namespace trireme {
namespace {

using namespace test;

constexpr std::pair<std::int64_t, std::int64_t> extents[] = {
    {1, 1}, {1, 40}, {37, 1}, {16, 16}, {7, 75}, {130, 9}, {96, 200}, {64, 31}};

TEST(Orthogonalize, FollowsTheIteration) {
  for (const auto& [rows, columns] : extents) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      OpsFixture f, meta(DeviceKind::meta);
      const Tensor matrix = f.random(DType::float32, {rows, columns}, "matrix");
      const ReferenceMatrix expected = orthogonalized(
          {static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), values(matrix)});
      ops::orthogonalize(f.context, matrix, dtype);
      // In each of five steps an error grows by at most 3.4, 500 times in all. bfloat16 rounds
      // every factor of a step, so a singular value is only known to some percent; the largest are
      // 1.2.
      expect_close(matrix, expected.values, dtype == DType::float32 ? 500 * 0x1p-24 : 0.06, 0,
                   to_string(matrix.shape));
      ops::orthogonalize(meta.context, meta.make(DType::float32, matrix.shape), dtype);
      EXPECT_EQ(meta.context.counters().bytes, f.context.counters().bytes);
      EXPECT_EQ(meta.context.counters().flops, f.context.counters().flops);
      EXPECT_EQ(f.context.counters().flops, ops::orthogonalize_flops(rows, columns));
      EXPECT_EQ(meta.workspace.peak_bytes(), f.workspace.peak_bytes());
    }
  }
}

/// Its direction: rows of norm 1 that are orthogonal to each other, as far as five steps lead.
TEST(Orthogonalize, AllSingularValuesAreNearOne) {
  OpsFixture f;
  const Tensor matrix = f.random(DType::float32, {24, 80}, "matrix");
  ops::orthogonalize(f.context, matrix, DType::bfloat16);
  const ReferenceMatrix x{24, 80, values(matrix)}, gram = product(x, transposed(x));
  for (std::size_t i = 0; i < 24; ++i)
    for (std::size_t j = 0; j < 24; ++j)
      EXPECT_NEAR(gram.at(i, j), i == j ? 1 : 0, i == j ? 0.5 : 0.25) << i << ", " << j;
}

TEST(Orthogonalize, ZerosStayZero) {
  OpsFixture f;
  const Tensor matrix = f.filled(DType::float32, {5, 12}, 0);
  ops::orthogonalize(f.context, matrix, DType::bfloat16);
  for (const double value : values(matrix)) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace trireme
