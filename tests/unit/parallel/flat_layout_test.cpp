#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/parallel/flat_layout.hpp"

namespace trireme::parallel {
namespace {

/// Twelve blocks of odd sizes; block 5 has no parameters, block 7 one large tensor.
ParameterList make_list() {
  ParameterList list;
  for (int block = 0; block < 12; ++block) {
    list.begin_block(block);
    if (block == 5) continue;
    const std::string name = "block" + std::to_string(block);
    list.declare({.name = name + ".weight", .shape = block == 7 ? Shape{50, 333} : Shape{block + 1, 3 * block + 1}});
    list.declare({.name = name + ".bias", .shape = {block + 1}, .compute_copy = false});
  }
  return list;
}

TEST(FlatLayout, TensorsFollowBackwardAndDoNotTouch) {
  const ParameterList list = make_list();
  const FlatLayout layout(list, 4000);
  std::int64_t end = 0;
  for (int block = list.blocks() - 1; block >= 0; --block) {
    for (std::size_t index = 0; index < list.entries().size(); ++index) {
      if (list.entries()[index].block != block) continue;
      const FlatLayout::Slot& slot = layout.slots()[index];
      EXPECT_EQ(slot.offset, (end + 15) / 16 * 16) << "the next multiple of 16";
      EXPECT_EQ(slot.elements, list.entries()[index].spec.shape.elements());
      EXPECT_EQ(slot.block, block);
      EXPECT_EQ(slot.compute_copy, list.entries()[index].spec.compute_copy);
      end = slot.offset + slot.elements;
    }
  }
  EXPECT_EQ(layout.elements(), (end + 15) / 16 * 16);
}

TEST(FlatLayout, BucketsCoverTheBufferAndCloseAtBlocks) {
  const ParameterList list = make_list();
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{700}, std::int64_t{4000}, std::int64_t{1} << 40}) {
    const FlatLayout layout(list, bytes);
    ASSERT_FALSE(layout.buckets().empty());
    std::int64_t end = 0;
    int previous_block = list.blocks();
    for (std::size_t index = 0; index < layout.buckets().size(); ++index) {
      const FlatLayout::Bucket& bucket = layout.buckets()[index];
      const bool last = index + 1 == layout.buckets().size();
      EXPECT_EQ(bucket.begin, end);
      EXPECT_LT(bucket.ready_block, previous_block);
      EXPECT_TRUE(last || (bucket.end - bucket.begin) * 4 >= bytes);
      std::int64_t last_start = 0;  // of the block that closes the bucket: without it the bucket was not full
      for (const FlatLayout::Slot& slot : layout.slots()) {
        const bool inside = bucket.begin <= slot.offset && slot.offset < bucket.end;
        EXPECT_EQ(inside, slot.bucket == static_cast<int>(index));
        if (!inside) continue;
        EXPECT_GE(slot.block, bucket.ready_block) << "not ready yet";
        EXPECT_LT(slot.block, previous_block);
        if (slot.block > bucket.ready_block) last_start = std::max(last_start, slot.offset + slot.elements);
      }
      EXPECT_LT((last_start - bucket.begin) * 4, bytes) << "closed later than it should";
      end = bucket.end;
      previous_block = bucket.ready_block;
    }
    EXPECT_EQ(end, layout.elements());
  }
  EXPECT_EQ(FlatLayout(list, 1).buckets().size(), 11u) << "one a block that has parameters";
  EXPECT_EQ(FlatLayout(list, std::int64_t{1} << 40).buckets().size(), 1u);
}

TEST(FlatLayout, NothingDeclared) {
  const FlatLayout layout(ParameterList{}, 100);
  EXPECT_EQ(layout.elements(), 0);
  EXPECT_TRUE(layout.buckets().empty());
  EXPECT_TRUE(layout.rows().empty());
  EXPECT_TRUE(layout.chunks().empty());
}

/// Pieces in flat order that fill each tensor exactly.
template <class Pieces>
void expect_tensors_filled(const FlatLayout& layout, const Pieces& pieces) {
  std::vector<std::int64_t> filled(layout.slots().size(), 0);
  std::int64_t previous = -1;
  for (const auto& piece : pieces) {
    const auto tensor = static_cast<std::size_t>(piece.tensor);
    EXPECT_GT(piece.offset, previous);
    EXPECT_GT(piece.elements, 0);
    EXPECT_EQ(piece.offset, layout.slots()[tensor].offset + filled[tensor]);
    filled[tensor] += piece.elements;
    previous = piece.offset;
  }
  for (std::size_t i = 0; i < filled.size(); ++i) EXPECT_EQ(filled[i], layout.slots()[i].elements);
}

TEST(FlatLayout, RowsAndChunksFillTheTensors) {
  const ParameterList list = make_list();
  const FlatLayout layout(list, 4000);
  expect_tensors_filled(layout, layout.rows());
  for (const ops::FlatRow& row : layout.rows()) EXPECT_EQ(row.elements, list[{row.tensor}].row_elements());
  for (const std::int64_t longest : {1, 7, 16384}) {
    const std::vector<ops::FlatChunk> chunks = layout.chunks(longest);
    expect_tensors_filled(layout, chunks);
    for (const ops::FlatChunk& chunk : chunks) EXPECT_LE(chunk.elements, longest);
  }
}

TEST(FlatLayout, ShardsCutAtRowsAsEvenlyAsThatAllows) {
  const FlatLayout layout(make_list(), 4000);
  for (const FlatLayout::Bucket& bucket : layout.buckets()) {
    std::vector<std::int64_t> cuts{bucket.begin, bucket.end};
    for (const ops::FlatRow& row : layout.rows()) {
      if (bucket.begin <= row.offset && row.offset < bucket.end) cuts.push_back(row.offset);
    }
    std::sort(cuts.begin(), cuts.end());
    std::int64_t largest = 0;  // atom, with the gap after it
    for (std::size_t i = 1; i < cuts.size(); ++i) largest = std::max(largest, cuts[i] - cuts[i - 1]);
    for (const int shards : {1, 2, 3, 8, 64}) {
      const std::vector<std::int64_t> bounds = layout.shard_bounds(bucket, shards);
      ASSERT_EQ(bounds.size(), static_cast<std::size_t>(shards) + 1);
      EXPECT_EQ(bounds.front(), bucket.begin);
      EXPECT_EQ(bounds.back(), bucket.end);
      for (std::size_t i = 1; i < bounds.size(); ++i) {
        EXPECT_LE(bounds[i - 1], bounds[i]);
        EXPECT_TRUE(std::binary_search(cuts.begin(), cuts.end(), bounds[i]));
        EXPECT_LE(bounds[i] - bounds[i - 1], (bucket.end - bucket.begin) / shards + 1 + largest);
      }
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
