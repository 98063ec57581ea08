// SPDX-License-Identifier: Apache-2.0
//
// Hyperslabs and coverage of split tensors, for 1 to 5 ranks and all kinds of splits.
#include "checkpoint/rows.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace trireme::checkpoint {
namespace {

using parallel::ParameterSpec;
using parallel::TensorPartition;
using Along = parallel::Split::Along;

/// Tensors with every kind of split.
std::vector<ParameterSpec> specs() {
  std::vector<ParameterSpec> specs;
  const auto add = [&](const Shape& shape, const parallel::Split& split) {
    specs.push_back({.name = "tensor", .shape = shape, .split = split});
  };
  add({7, 5}, {Along::rows});
  add({13, 5}, {Along::rows, {5, 5, 3}});
  add({7, 5}, {Along::columns});
  add({3, 13}, {Along::columns, {5, 5, 3}});
  add({2, 3}, {Along::columns});
  add({11}, {Along::rows});
  add({13}, {Along::columns, {5, 5, 3}});
  add({5, 3, 2}, {Along::rows});
  return specs;
}

/// Appends the row-major indices of the elements of a box.
void add_places(const Shape& shape, const io::Hdf5Box& box, std::vector<std::int64_t>& places) {
  ASSERT_EQ(box.start.size(), static_cast<std::size_t>(shape.rank()));
  for (std::int64_t place = 0; place < shape.elements(); ++place) {
    bool inside = true;
    std::int64_t rest = place;
    for (int i = shape.rank() - 1; i >= 0; rest /= shape[i], --i) {
      const auto dimension = static_cast<std::size_t>(i);
      inside = inside && rest % shape[i] >= box.start[dimension] &&
               rest % shape[i] < box.start[dimension] + box.count[dimension];
    }
    if (inside) places.push_back(place);
  }
}

TEST(Boxes, OfAllRanksAndRoundsCoverEachElementOnceInTheOrderOfMemory) {
  for (const ParameterSpec& spec : specs()) {
    for (int size = 1; size <= 5; ++size) {
      for (std::int64_t step = 1; step <= 3; ++step) {
        std::vector<int> held(static_cast<std::size_t>(spec.shape.elements()));
        for (int rank = 0; rank < size; ++rank) {
          const TensorPartition partition(spec, rank, size);
          for (std::int64_t begin = 0; begin < partition.rows(); begin += step) {
            const std::int64_t end = std::min(begin + step, partition.rows());
            std::vector<std::int64_t> places, expected;
            for (const io::Hdf5Box& box : boxes_of_rows(spec, partition, begin, end))
              add_places(spec.shape, box, places);
            // HDF5 transfers a union of boxes in this order.
            std::sort(places.begin(), places.end());
            for (const TensorPartition::Segment& rows : partition.row_segments(begin, end)) {
              for (std::int64_t row = 0; row < rows.count; ++row) {
                for (const TensorPartition::Segment& segment : partition.segments()) {
                  for (std::int64_t i = 0; i < segment.count; ++i)
                    expected.push_back((rows.file + row) * spec.row_elements() + segment.file + i);
                }
              }
            }
            EXPECT_EQ(places, expected);
            for (const std::int64_t place : places) ++held[static_cast<std::size_t>(place)];
          }
        }
        EXPECT_EQ(held, std::vector<int>(held.size(), 1))
            << to_string(spec.shape) << " over " << size;
      }
    }
  }
}

TEST(Boxes, OfNoRowsAreNone) {
  const ParameterSpec spec{.name = "bias", .shape = {5}};
  EXPECT_TRUE(boxes_of_rows(spec, TensorPartition(spec), 0, 0).empty());
  const ParameterSpec narrow{.name = "narrow", .shape = {4, 1}, .split = {Along::columns}};
  EXPECT_TRUE(boxes_of_rows(narrow, TensorPartition(narrow, 0, 2), 0, 4).empty());
}

Coverage operator+(const Coverage& a, const Coverage& b) {
  return {a.elements + b.elements, a.hash + b.hash};
}

TEST(Coverage, CountsHowOftenAWholeIsHeld) {
  for (const ParameterSpec& spec : specs()) {
    for (int size = 1; size <= 5; ++size) {
      Coverage sum;
      for (int rank = 0; rank < size; ++rank) {
        const TensorPartition partition(spec, rank, size);
        for (std::int64_t row = 0; row < partition.rows(); ++row)
          sum = sum + coverage_of(partition, row, row + 1);
      }
      EXPECT_EQ(count_covers(spec, sum), 1u);
      EXPECT_EQ(count_covers(spec, sum + sum + sum), 3u);
      EXPECT_EQ(count_covers(spec, {}), 0u);
    }
  }
}

TEST(Coverage, FindsMissingAndDuplicateParts) {
  const ParameterSpec columns{.name = "w", .shape = {7, 6}, .split = {Along::columns}};
  ParameterSpec rows = columns;
  rows.split.along = Along::rows;
  for (int size = 2; size <= 5; ++size) {
    for (int missing = 0; missing < size; ++missing) {
      for (int twice = 0; twice < size; ++twice) {
        if (twice == missing) continue;
        for (const ParameterSpec& spec : {columns, rows}) {
          // One partition is held twice, another one is missing. If both have the same extent, only
          // the hash differs.
          Coverage sum = coverage_of(TensorPartition(spec, twice, size), 0,
                                     TensorPartition(spec, twice, size).rows());
          for (int rank = 0; rank < size; ++rank) {
            if (rank != missing)
              sum = sum + coverage_of(TensorPartition(spec, rank, size), 0,
                                      TensorPartition(spec, rank, size).rows());
          }
          EXPECT_EQ(count_covers(spec, sum), 0u);
        }
      }
    }
  }
  // One diagonal of a 2 x 2 block is held twice, the other one is missing: every row and column sum
  // is unchanged.
  const ParameterSpec spec{.name = "w", .shape = {2, 2}, .split = {Along::columns}};
  const TensorPartition left(spec, 0, 2), right(spec, 1, 2);
  EXPECT_EQ(count_covers(spec, coverage_of(left, 0, 1) + coverage_of(left, 0, 1) +
                                   coverage_of(right, 1, 2) + coverage_of(right, 1, 2)),
            0u);
}

}  // namespace
}  // namespace trireme::checkpoint
