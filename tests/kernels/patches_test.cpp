// SPDX-License-Identifier: Apache-2.0
//
// Patches of images against the definition, to rows and back: every row and number, ranges of rows,
// packs and odd extents, and the bytes that meta counts.
#include "trireme/ops/patches.hpp"

#include <utility>

#include "reference.hpp"

namespace trireme {
namespace {

using ops::PatchRows;
using namespace test;

struct Case {
  std::int64_t batch;
  PatchRows rows;
};

// Rows of pixels of packs and of odd numbers, images that are not square, one patch, and a class
// token in front.
constexpr Case cases[] = {{1, {1, 1, 1, 1, 0}},    {2, {4, 6, 1, 2, 0}},   {3, {8, 8, 3, 4, 1}},
                          {2, {16, 32, 8, 16, 1}}, {2, {14, 28, 3, 7, 1}}, {2, {48, 32, 3, 16, 0}},
                          {5, {9, 3, 5, 3, 2}}};

/// Returns element `i` of a row of the matrix.
double expected_at(const Case& c, const Values& x, std::int64_t row, std::int64_t i) {
  const PatchRows& p = c.rows;
  const std::int64_t sample = row / p.rows_of_sample(),
                     patch = row % p.rows_of_sample() - p.leading;
  if (patch < 0) return 0;
  const std::int64_t channel = i % p.channels, pixel = i / p.channels;
  const std::int64_t top = patch / p.grid_width() * p.patch + pixel / p.patch,
                     left = patch % p.grid_width() * p.patch + pixel % p.patch;
  return x[((sample * p.height + top) * p.width + left) * p.channels + channel];
}

TEST(Patches, AreRowsInTheOrderOfTheImage) {
  for (const DType dtype : compute_types) {
    for (const Case& c : cases) {
      const std::int64_t all = c.batch * c.rows.rows_of_sample(), width = c.rows.row_elements();
      const std::pair<std::int64_t, std::int64_t> ranges[] = {{0, all}, {all / 2, all - all / 2}};
      for (const auto& [first, rows] : ranges) {
        OpsFixture f;
        const Tensor x =
            f.random(dtype, {c.batch, c.rows.height, c.rows.width, c.rows.channels}, "x");
        const Tensor y = f.make(dtype, {rows, width});
        gather_patches(f.context, c.rows, x, first, y);
        const Values from = values(x), to = values(y);
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t i = 0; i < width; ++i)
            ASSERT_EQ(to[row * width + i], expected_at(c, from, first + row, i))
                << to_string(dtype) << " patch " << c.rows.patch << " row " << row << " at " << i;
        }
      }
    }
  }
}

TEST(Patches, ScatterIsTheInverseOfGather) {
  for (const DType dtype : compute_types) {
    for (const Case& c : cases) {
      OpsFixture f;
      const std::int64_t rows = c.batch * c.rows.rows_of_sample(), width = c.rows.row_elements();
      const Tensor x = f.random(dtype, {rows, width}, "x");
      const Tensor y =
          f.random(dtype, {c.batch, c.rows.height, c.rows.width, c.rows.channels}, "y");
      scatter_patches(f.context, c.rows, x, y);
      const Values from = values(x), to = values(y);
      for (std::int64_t row = 0; row < rows; ++row) {
        if (row % c.rows.rows_of_sample() < c.rows.leading) continue;
        for (std::int64_t i = 0; i < width; ++i)
          ASSERT_EQ(from[row * width + i], expected_at(c, to, row, i))
              << to_string(dtype) << " patch " << c.rows.patch << " row " << row << " at " << i;
      }
    }
  }
}

TEST(Patches, MetaCountsTheBytesOfTheReal) {
  OpsFixture real, meta(DeviceKind::meta);
  const PatchRows rows{8, 8, 3, 4, 1};
  for (OpsFixture* f : {&real, &meta}) {
    const Tensor images = f->random(DType::float32, {2, 8, 8, 3}, "x"),
                 matrix = f->make(DType::float32, {10, 48});
    gather_patches(f->context, rows, images, 0, matrix);
    scatter_patches(f->context, rows, matrix, images);
  }
  EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes);
  EXPECT_EQ(meta.context.counters().bytes, 2 * 4 * 10 * 48 + 2 * 4 * 2 * 8 * 8 * 3);
}

}  // namespace
}  // namespace trireme
