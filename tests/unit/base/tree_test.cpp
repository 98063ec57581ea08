// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/base/philox.hpp"
#include "trireme/base/tree.hpp"

namespace trireme {
namespace {

std::vector<float> make_leaves(std::size_t count) {
  std::vector<float> leaves(count);
  for (std::size_t i = 0; i < count; ++i) leaves[i] = static_cast<float>(normal_at(42, i));
  return leaves;
}

/// The definition of tree_sum(), written with indices.
float halving(const std::vector<float>& values, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return values[begin];
  const std::size_t middle = begin + (end - begin) / 2;
  return halving(values, begin, middle) + halving(values, middle, end);
}

TEST(Tree, SumIsRecursiveHalving) {
  for (std::size_t count = 1; count <= 200; ++count) {
    const std::vector<float> leaves = make_leaves(count);
    EXPECT_EQ(tree_sum(std::span<const float>(leaves)), halving(leaves, 0, count)) << count;
  }
  EXPECT_EQ(tree_sum(std::span<const float>()), 0.0f);
}

TEST(Tree, TheOrderShows) {
  const std::vector<float> leaves = make_leaves(200);
  float forward = 0;
  for (const float leaf : leaves) forward += leaf;
  EXPECT_NE(tree_sum(std::span<const float>(leaves)), forward)
      << "these numbers would not notice another order";
}

TEST(Tree, WalkReproducesTheSumWithinItsDepth) {
  for (std::int64_t count = 1; count <= 200; ++count) {
    const std::vector<float> leaves = make_leaves(static_cast<std::size_t>(count));
    const TreeWalk walk(count);
    std::vector<float> stack;
    std::size_t max_size = 0;
    for (std::int64_t leaf = 0; leaf < count; ++leaf) {
      stack.push_back(leaves[static_cast<std::size_t>(leaf)]);
      max_size = std::max(max_size, stack.size());
      for (int merge = 0; merge < walk.merge_count(leaf); ++merge) {
        const float upper = stack.back();
        stack.pop_back();
        stack.back() += upper;
      }
    }
    ASSERT_EQ(stack.size(), 1u) << count;
    EXPECT_EQ(stack[0], tree_sum(std::span<const float>(leaves))) << count;
    EXPECT_LE(max_size, static_cast<std::size_t>(walk.depth())) << count;
    EXPECT_EQ(walk.depth(), 1 + static_cast<int>(std::ceil(std::log2(count)))) << count;
  }
}

TEST(Tree, SubtreesOfAPowerOfTwoOfPartsAreTheTreesOfTheParts) {
  const std::vector<float> leaves = make_leaves(96);
  for (std::size_t parts = 1; parts <= 32; parts *= 2) {
    std::vector<float> sums;
    for (std::size_t part = 0; part < parts; ++part)
      sums.push_back(
          tree_sum(std::span<const float>(leaves).subspan(part * 96 / parts, 96 / parts)));
    EXPECT_EQ(tree_sum(std::span<const float>(sums)), tree_sum(std::span<const float>(leaves)))
        << parts;
  }
}

}  // namespace
}  // namespace trireme
