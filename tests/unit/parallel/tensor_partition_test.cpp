// SPDX-License-Identifier: Apache-2.0
//
// TensorPartition: the parts of all ranks cover every element once, sections are split separately,
// and initial values equal those of the whole tensor.

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/parallel/parameter.hpp"

namespace trireme::parallel {
namespace {

using Along = Split::Along;

/// Odd extents, sections of different widths, fewer rows and columns than ranks, and tensors of one
/// and three dimensions.
std::vector<ParameterSpec> split_specs() {
  std::vector<ParameterSpec> specs;
  const auto add = [&](const Shape& shape, const Split& split) {
    specs.push_back({.name = "tensor",
                     .shape = shape,
                     .initializer = {Initializer::Kind::normal, 1},
                     .split = split});
  };
  add({7, 5}, {Along::rows});
  add({13, 5}, {Along::rows, {5, 5, 3}});
  add({4, 2}, {Along::rows, {1, 1, 2}});
  add({7, 5}, {Along::columns});
  add({3, 13}, {Along::columns, {5, 5, 3}});
  add({2, 3}, {Along::rows});
  add({2, 3}, {Along::columns});
  add({2, 4}, {Along::columns, {1, 1, 2}});
  add({11}, {Along::rows});
  add({11}, {Along::columns});
  add({13}, {Along::columns, {5, 5, 3}});
  add({5, 3, 2}, {Along::rows});
  add({1, 1}, {Along::columns});
  return specs;
}

/// Returns the index in the whole tensor (file order) of every element of a part, in memory order.
std::vector<std::int64_t> places_of(const ParameterSpec& spec, const TensorPartition& part) {
  std::vector<std::int64_t> places;
  std::int64_t local = 0;
  for (const TensorPartition::Segment& rows : part.row_segments(0, part.rows())) {
    EXPECT_GT(rows.count, 0);
    EXPECT_EQ(rows.local, local);
    local += rows.count;
    for (std::int64_t row = 0; row < rows.count; ++row) {
      std::int64_t column = 0;
      for (const TensorPartition::Segment& segment : part.segments()) {
        EXPECT_GT(segment.count, 0);
        EXPECT_EQ(segment.local, column);
        column += segment.count;
        for (std::int64_t i = 0; i < segment.count; ++i)
          places.push_back((rows.file + row) * spec.row_elements() + segment.file + i);
      }
      EXPECT_EQ(column, part.row_elements());
    }
  }
  EXPECT_EQ(local, part.rows());
  return places;
}

TEST(TensorPartition, OfAllRanksCoverEachElementOnce) {
  for (const ParameterSpec& spec : split_specs()) {
    for (int size = 1; size <= 5; ++size) {
      std::vector<int> held(static_cast<std::size_t>(spec.shape.elements()));
      for (int rank = 0; rank < size; ++rank) {
        const TensorPartition part(spec, rank, size);
        const std::vector<std::int64_t> places = places_of(spec, part);
        for (const std::int64_t place : places) ++held[static_cast<std::size_t>(place)];
        EXPECT_EQ(static_cast<std::int64_t>(places.size()), part.elements());
        EXPECT_EQ(part.shape().elements(), part.elements());
        EXPECT_EQ(part.memory_shape(), part.shape());
        EXPECT_EQ(part.replicated(), size == 1);
        EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
      }
      EXPECT_EQ(held, std::vector<int>(held.size(), 1))
          << to_string(spec.shape) << " over " << size;
    }
  }
}

TEST(TensorPartition, ContainsItsShareOfEachSection) {
  const TensorPartition rows({.name = "wte", .shape = {7, 5}, .split = {Along::rows}}, 1, 3);
  EXPECT_EQ(rows.row_begin(), 2);  // floor(7/3)
  EXPECT_EQ(rows.shape(), (Shape{2, 5}));
  const TensorPartition columns(
      {.name = "c_attn", .shape = {4, 12}, .split = {Along::columns, {4, 4, 4}}}, 1, 2);
  EXPECT_EQ(columns.row_begin(), 0);
  EXPECT_EQ(columns.shape(), (Shape{4, 6}));
  ASSERT_EQ(columns.segments().size(), 3u);
  for (std::int64_t section = 0; section < 3; ++section) {
    const TensorPartition::Segment& segment = columns.segments()[static_cast<std::size_t>(section)];
    EXPECT_EQ(segment.file, 4 * section + 2);
    EXPECT_EQ(segment.local, 2 * section);
    EXPECT_EQ(segment.count, 2);
  }
  const TensorPartition sections(
      {.name = "qkv", .shape = {12, 4}, .split = {Along::rows, {4, 4, 4}}}, 1, 2);
  EXPECT_EQ(sections.shape(), (Shape{6, 4}));
  // Local rows 1 to 4 are the second row of q, both of k, and the first one of v.
  const std::vector<TensorPartition::Segment> some = sections.row_segments(1, 5);
  ASSERT_EQ(some.size(), 3u);
  EXPECT_EQ(some[0].file, 3);
  EXPECT_EQ(some[1].file, 6);
  EXPECT_EQ(some[1].local, 2);
  EXPECT_EQ(some[1].count, 2);
  EXPECT_EQ(some[2].file, 10);
  EXPECT_EQ(some[2].count, 1);
  const TensorPartition bias({.name = "bias", .shape = {7}, .split = {Along::rows}}, 1, 2);
  EXPECT_EQ(bias.rows(), 1);
  EXPECT_EQ(bias.shape(), (Shape{4}));
  EXPECT_EQ(bias.segments()[0].file, 3);
}

TEST(TensorPartition, OfATensorThatIsNotSplitIsTheWhole) {
  const ParameterSpec spec{
      .name = "conv", .shape = {4, 3, 2, 1}, .inner = InnerOrder::channels_last};
  for (int rank = 0; rank < 3; ++rank) {
    const TensorPartition part(spec, rank, 3);
    EXPECT_TRUE(part.replicated());
    EXPECT_EQ(part.row_begin(), 0);
    EXPECT_EQ(part.rows(), 4);
    EXPECT_EQ(part.shape(), spec.shape);
    EXPECT_EQ(part.memory_shape(), (Shape{4, 2, 1, 3}));
    ASSERT_EQ(part.segments().size(), 1u);
  }
}

TEST(TensorPartition, InitialValuesAreThoseOfTheWhole) {
  for (ParameterSpec spec : split_specs()) {
    for (const auto kind :
         {Initializer::Kind::constant, Initializer::Kind::normal, Initializer::Kind::uniform}) {
      spec.initializer.kind = kind;
      std::vector<float> whole(static_cast<std::size_t>(spec.shape.elements()));
      initialize_rows(spec, TensorPartition(spec), 5, 0, spec.rows(), whole.data());
      for (int size = 1; size <= 5; ++size) {
        for (int rank = 0; rank < size; ++rank) {
          const TensorPartition part(spec, rank, size);
          std::vector<float> held(static_cast<std::size_t>(part.elements())), expected;
          const std::int64_t middle = part.rows() / 2;
          initialize_rows(spec, part, 5, 0, middle, held.data());
          initialize_rows(spec, part, 5, middle, part.rows(),
                          held.data() + middle * part.row_elements());
          for (const std::int64_t place : places_of(spec, part))
            expected.push_back(whole[static_cast<std::size_t>(place)]);
          EXPECT_EQ(held, expected) << to_string(spec.shape) << " rank " << rank << " of " << size;
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
