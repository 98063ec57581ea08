// SPDX-License-Identifier: Apache-2.0
//
// FlatLayout: offsets, alignment and order of all tensors, buckets and their boundaries,
// statistics, joined and tied tensors, division into parts at row boundaries, and the layout of the
// working weights.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/parallel/flat_layout.hpp"

namespace trireme::parallel {
namespace {

/// Twelve blocks of odd sizes; block 5 has no parameters, block 7 one large tensor.
ParameterList blocks_of_odd_sizes() {
  ParameterList list;
  for (int block = 0; block < 12; ++block) {
    list.begin_block(block);
    if (block == 5) continue;
    const std::string name = "block" + std::to_string(block);
    list.declare({.name = name + ".weight",
                  .shape = block == 7 ? Shape{50, 333} : Shape{block + 1, 3 * block + 1}});
    list.declare({.name = name + ".bias", .shape = {block + 1}, .compute_copy = false});
  }
  return list;
}

TEST(FlatLayout, TensorsFollowBackwardAndDoNotTouch) {
  const ParameterList list = blocks_of_odd_sizes();
  const FlatLayout layout(list, 4000, DType::float32);
  std::int64_t end = 0;
  for (int block = list.blocks() - 1; block >= 0; --block) {
    for (std::size_t index = 0; index < list.entries().size(); ++index) {
      if (list.entries()[index].block != block) continue;
      const FlatLayout::FlatTensor& slot = layout.tensors()[index];
      EXPECT_EQ(slot.offset, (end + 15) / 16 * 16) << "the next multiple of 16";
      EXPECT_EQ(slot.elements, list.entries()[index].spec.shape.elements());
      EXPECT_EQ(slot.block, block);
      end = slot.offset + slot.elements;
    }
  }
  EXPECT_EQ(layout.elements(), (end + 15) / 16 * 16);
}

TEST(FlatLayout, BucketsCoverTheBufferAndCloseAtBlocks) {
  const ParameterList list = blocks_of_odd_sizes();
  for (const std::int64_t bytes :
       {std::int64_t{1}, std::int64_t{700}, std::int64_t{4000}, std::int64_t{1} << 40}) {
    const FlatLayout layout(list, bytes, DType::float32);
    ASSERT_FALSE(layout.buckets().empty());
    std::int64_t end = 0;
    int previous_block = list.blocks();
    for (std::size_t index = 0; index < layout.buckets().size(); ++index) {
      const FlatLayout::Bucket& bucket = layout.buckets()[index];
      const bool last = index + 1 == layout.buckets().size();
      EXPECT_EQ(bucket.begin, end);
      EXPECT_LT(bucket.ready_block, previous_block);
      EXPECT_TRUE(last || (bucket.end - bucket.begin) * 4 >= bytes);
      // Start of the block that closes the bucket: without this block the bucket was not full.
      std::int64_t last_start = 0;
      for (const FlatLayout::FlatTensor& slot : layout.tensors()) {
        const bool inside = bucket.begin <= slot.offset && slot.offset < bucket.end;
        EXPECT_EQ(inside, slot.bucket == static_cast<int>(index));
        if (!inside) continue;
        EXPECT_GE(slot.block, bucket.ready_block) << "not ready yet";
        EXPECT_LT(slot.block, previous_block);
        if (slot.block > bucket.ready_block)
          last_start = std::max(last_start, slot.offset + slot.elements);
      }
      EXPECT_LT((last_start - bucket.begin) * 4, bytes) << "closed later than it should";
      end = bucket.end;
      previous_block = bucket.ready_block;
    }
    EXPECT_EQ(end, layout.elements());
  }
  EXPECT_EQ(FlatLayout(list, 1, DType::float32).buckets().size(), 11u)
      << "one a block that has parameters";
  EXPECT_EQ(FlatLayout(list, std::int64_t{1} << 40, DType::float32).buckets().size(), 1u);
}

TEST(FlatLayout, StatisticsFollowTheWeightsOfTheirBucket) {
  ParameterList list;
  for (int block = 0; block < 6; ++block) {
    list.begin_block(block);
    const std::string name = "block" + std::to_string(block);
    if (block != 2) list.declare({.name = name + ".weight", .shape = {block + 2, 9}});
    if (block != 4)
      list.declare(
          {.name = name + ".mean", .shape = {17}, .role = Role::statistic, .compute_copy = false});
    if (block != 2) list.declare({.name = name + ".bias", .shape = {17}, .compute_copy = false});
  }
  // One bucket a block (one with statistics only, one without any); several blocks in a bucket; one
  // bucket.
  for (const std::int64_t bytes : {1, 500, 1 << 20}) {
    const FlatLayout layout(list, bytes, DType::bfloat16);
    std::int64_t previous = -1;
    for (const ops::FlatRow& row : make_rows(layout.runs())) {
      EXPECT_GT(row.offset, previous) << "flat order is one";
      previous = row.offset;
    }
    for (std::size_t index = 0; index < layout.tensors().size(); ++index) {
      const FlatLayout::FlatTensor& slot = layout.tensors()[index];
      const FlatLayout::Bucket& bucket = layout.buckets()[static_cast<std::size_t>(slot.bucket)];
      const bool statistic = list.entries()[index].spec.role == Role::statistic;
      EXPECT_EQ(slot.offset >= bucket.statistics_begin, statistic)
          << list.entries()[index].spec.name;
      EXPECT_GE(slot.offset, bucket.begin);
      EXPECT_LE(slot.offset + slot.elements, bucket.end);
      EXPECT_LE(statistic ? 0 : slot.offset + slot.elements, bucket.statistics_begin);
    }
  }
}

TEST(FlatLayout, NothingDeclared) {
  const FlatLayout layout(ParameterList{}, 100, DType::bfloat16);
  EXPECT_EQ(layout.elements(), 0);
  EXPECT_TRUE(layout.buckets().empty());
  EXPECT_TRUE(make_rows(layout.runs()).empty());
  EXPECT_EQ(layout.working_bytes(), 0);
}

TEST(FlatLayout, RowsFillTheTensors) {
  const ParameterList list = blocks_of_odd_sizes();
  const FlatLayout layout(list, 4000, DType::float32);
  std::vector<std::int64_t> filled(layout.tensors().size(), 0);
  std::int64_t previous = -1;
  for (const ops::FlatRow& row : make_rows(layout.runs())) {
    const auto tensor = static_cast<std::size_t>(row.tensor);
    EXPECT_GT(row.offset, previous);
    EXPECT_EQ(row.elements, list[{row.tensor}].row_elements());
    EXPECT_EQ(row.offset, layout.tensors()[tensor].offset + filled[tensor]);
    filled[tensor] += row.elements;
    previous = row.offset;
  }
  for (std::size_t i = 0; i < filled.size(); ++i)
    EXPECT_EQ(filled[i], layout.tensors()[i].elements);
}

TEST(FlatLayout, ShardsCutAtRowsAsEvenlyAsThatAllows) {
  const FlatLayout layout(blocks_of_odd_sizes(), 4000, DType::float32);
  for (std::size_t index = 0; index < layout.buckets().size(); ++index) {
    const FlatLayout::Bucket& bucket = layout.buckets()[index];
    std::vector<std::int64_t> cuts{bucket.begin, bucket.end};
    for (const ops::FlatRow& row : make_rows(layout.runs())) {
      if (bucket.begin <= row.offset && row.offset < bucket.end) cuts.push_back(row.offset);
    }
    std::sort(cuts.begin(), cuts.end());
    std::int64_t largest = 0;  // row, including the gap after it
    for (std::size_t i = 1; i < cuts.size(); ++i)
      largest = std::max(largest, cuts[i] - cuts[i - 1]);
    for (const int shards : {1, 2, 3, 8, 64}) {
      const std::vector<std::int64_t> bounds = layout.shard_bounds(shards)[index];
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

/// A table whose rows the tensor group cannot divide, and blocks of three matrices that stay whole.
ParameterList make_whole_matrices(int tensor_rank, int tensor_size) {
  using Along = Split::Along;
  ParameterList list(tensor_rank, tensor_size);
  for (int block = 0; block < 12; ++block) {
    list.begin_block(block);
    for (const auto& [name, rows] : {std::pair("a", 48), {"b", 16}, {"c", 64}}) {
      list.declare({.name = std::to_string(block) + name,
                    .shape = {rows, 16},
                    .split = {Along::rows},
                    .atom = Atom::tensor});
    }
  }
  // The last block has the first bucket, whose cuts move those of all others.
  list.begin_block(12);
  list.declare({.name = "table", .shape = {101, 16}, .split = {Along::rows}});
  return list;
}

/// Returns the owner of each whole tensor.
std::vector<std::size_t> owners_of(const FlatLayout& layout, int shards) {
  const std::vector<std::vector<std::int64_t>> bounds = layout.shard_bounds(shards);
  std::vector<std::size_t> owners;
  for (const RowRun& run : layout.runs()) {
    if (!run.whole) continue;
    owners.push_back(FlatLayout::owner_of(
        bounds[static_cast<std::size_t>(layout.tensor({run.tensor}).bucket)], run.offset));
  }
  return owners;
}

TEST(FlatLayout, WholeTensorsAreSpreadOverTheShards) {
  const ParameterList list = make_whole_matrices(0, 1);
  const FlatLayout layout(list, 1, DType::float32);  // a bucket for each block
  for (const int shards : {2, 5, 12, 36, 64}) {
    std::map<std::size_t, std::int64_t> elements;
    const std::vector<std::size_t> owners = owners_of(layout, shards);
    auto owner = owners.begin();
    for (const RowRun& run : layout.runs())
      if (run.whole) elements[*owner++] += run.rows * run.row_elements;
    const std::int64_t all = 12 * (48 + 16 + 64) * 16, largest = 64 * 16;
    for (const auto& [shard, count] : elements)
      EXPECT_LE(count, all / shards + largest) << shards << " shards";
  }
}

TEST(FlatLayout, AWholeTensorHasOneOwnerOnAllRanksOfATensorGroup) {
  for (const int size : {2, 4}) {
    for (const int bytes : {1, 20'000}) {
      for (const int shards : {2, 3, 7, 16}) {
        std::set<std::vector<std::size_t>> found;
        for (int rank = 0; rank < size; ++rank) {
          const ParameterList list = make_whole_matrices(rank, size);
          found.insert(owners_of(FlatLayout(list, bytes, DType::float32), shards));
        }
        EXPECT_EQ(found.size(), 1U) << size << " ranks, " << shards << " shards";
      }
    }
  }
}

/// Two stages of a pipeline hold the tied tensor, one of them with all matrices.
TEST(FlatLayout, ATiedTensorIsCutAlikeBesideOtherTensors) {
  const auto cuts = [](bool has_matrices) {
    ParameterList list;
    list.begin_block(0);
    list.declare({.name = "tied", .shape = {37, 6}, .tied = true});
    for (int block = 1; has_matrices && block < 4; ++block) {
      list.begin_block(block);
      list.declare({.name = std::to_string(block), .shape = {40, 10}, .atom = Atom::tensor});
    }
    const FlatLayout layout(list, 1, DType::float32);
    std::vector<std::int64_t> bounds = layout.shard_bounds(3).back();
    for (std::int64_t& bound : bounds) bound -= layout.buckets().back().begin;
    return bounds;
  };
  EXPECT_EQ(cuts(true), cuts(false));
}

/// Like a transformer: a tied embedding, positions, two blocks with joined projections, and a head.
ParameterList make_tied_list(int tensor_rank = 0, int tensor_size = 1) {
  using Along = Split::Along;
  ParameterList list(tensor_rank, tensor_size);
  list.begin_block(0);
  list.declare({.name = "embedding", .shape = {37, 6}, .split = {Along::rows}, .tied = true});
  list.declare({.name = "positions", .shape = {5, 6}});
  for (int block = 1; block <= 2; ++block) {
    list.begin_block(block);
    const std::string name = "block" + std::to_string(block);
    list.declare({.name = name + ".norm", .shape = {6}, .compute_copy = false});
    list.declare({.name = name + ".q", .shape = {7, 6}, .split = {Along::rows}});
    list.declare({.name = name + ".k", .shape = {3, 6}, .split = {Along::rows}, .joined = true});
    list.declare({.name = name + ".v", .shape = {3, 6}, .split = {Along::rows}, .joined = true});
    list.declare({.name = name + ".out", .shape = {6, 7}, .split = {Along::columns}});
  }
  list.begin_block(3);
  list.declare({.name = "final.norm", .shape = {6}, .compute_copy = false});
  list.declare({.name = "embedding", .shape = {37, 6}, .split = {Along::rows}, .tied = true});
  return list;
}

TEST(FlatLayout, JoinedTensorsTouch) {
  for (const int ranks : {1, 2}) {
    const ParameterList list = make_tied_list(ranks - 1, ranks);
    for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
      const FlatLayout layout(list, 1, compute);
      int joined = 0;
      for (std::int32_t index = 0; index < static_cast<std::int32_t>(list.entries().size());
           ++index) {
        const FlatLayout::FlatTensor& slot = layout.tensor({index});
        EXPECT_EQ(slot.elements, list.partition({index}).elements());
        if (!list[{index}].joined) {
          EXPECT_EQ(slot.offset % 16, 0);
          EXPECT_EQ(slot.working_begin % 64, 0);
          continue;
        }
        ++joined;
        const FlatLayout::FlatTensor& before = layout.tensor({index - 1});
        EXPECT_EQ(slot.offset, before.offset + before.elements);
        EXPECT_EQ(slot.working_begin, before.working_begin + before.elements * size_of(compute));
      }
      EXPECT_EQ(joined, 4);
    }
  }
}

TEST(FlatLayout, ATiedTensorHasABucketOfItsOwnBehindAllOthers) {
  const ParameterList list = make_tied_list();
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1} << 40}) {
    const FlatLayout layout(list, bytes, DType::float32);
    const FlatLayout::Bucket& last = layout.buckets().back();
    const FlatLayout::FlatTensor& embedding = layout.tensor({0});
    EXPECT_TRUE(last.tied);
    EXPECT_EQ(last.ready_block, 0) << "the owner's block";
    EXPECT_EQ(embedding.bucket, static_cast<int>(layout.buckets().size()) - 1);
    EXPECT_EQ(last.begin, embedding.offset);
    EXPECT_EQ(last.end, layout.elements());
    for (std::size_t i = 1; i < layout.tensors().size(); ++i)
      EXPECT_NE(layout.tensors()[i].bucket, embedding.bucket);
    EXPECT_EQ(std::count_if(layout.buckets().begin(), layout.buckets().end(),
                            [](const auto& bucket) { return bucket.tied; }),
              1);
    EXPECT_EQ(layout.bucket_of(0), layout.tensor({1}).bucket) << "of the block's other parameters";
  }
}

TEST(FlatLayout, BucketsCloseWhereChunksBegin) {
  const ParameterList list = blocks_of_odd_sizes();
  const std::vector<int> begins{0, 5, 9};
  const FlatLayout layout(list, std::int64_t{1} << 40, DType::float32, begins);
  ASSERT_EQ(layout.buckets().size(), 3u);
  EXPECT_EQ(layout.buckets()[0].ready_block, 9);
  EXPECT_EQ(layout.buckets()[1].ready_block, 6) << "block 5 has no parameters";
  EXPECT_EQ(layout.buckets()[2].ready_block, 0);
  for (int block = 0; block < 12; ++block)
    EXPECT_EQ(layout.bucket_of(block), block == 5   ? -1
                                       : block >= 9 ? 0
                                       : block >= 5 ? 1
                                                    : 2)
        << block;
  EXPECT_EQ(layout.bucket_of(12), -1);
}

TEST(FlatLayout, WorkingWeightsHaveTheSameOrderEachInItsType) {
  const ParameterList list = blocks_of_odd_sizes();
  const FlatLayout plain(list, 4000, DType::float32), mixed(list, 4000, DType::bfloat16);
  for (const FlatLayout::FlatTensor& slot : plain.tensors())
    EXPECT_EQ(slot.working_begin, 4 * slot.offset);
  EXPECT_EQ(plain.working_bytes(), 4 * plain.elements());
  std::vector<FlatLayout::FlatTensor> slots = mixed.tensors();
  std::sort(slots.begin(), slots.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::int64_t end = 0;
  for (const FlatLayout::FlatTensor& slot : slots) {
    EXPECT_EQ(slot.working_begin, (end + 63) / 64 * 64);
    end = slot.working_begin + slot.elements * size_of(slot.type);
    const FlatLayout::Bucket& bucket = mixed.buckets()[static_cast<std::size_t>(slot.bucket)];
    EXPECT_LE(bucket.working_begin, slot.working_begin);
    EXPECT_LE(end, bucket.working_end);
  }
  for (std::size_t i = 0; i < list.entries().size(); ++i) {
    EXPECT_EQ(mixed.tensors()[i].type,
              list.entries()[i].spec.compute_copy ? DType::bfloat16 : DType::float32);
    EXPECT_EQ(mixed.tensors()[i].offset, plain.tensors()[i].offset)
        << "the float32 buffers know nothing of the compute type";
  }
  EXPECT_EQ(mixed.buckets().front().working_begin, 0);
  EXPECT_EQ(mixed.buckets().back().working_end, mixed.working_bytes());
  for (std::size_t i = 1; i < mixed.buckets().size(); ++i)
    EXPECT_EQ(mixed.buckets()[i].working_begin, mixed.buckets()[i - 1].working_end);
}

TEST(FlatLayout, ProductsOnCudaReadTheirBiasesInComputePrecision) {
  ParameterList list;
  list.declare({.name = "weight", .shape = {3, 4}});
  list.declare({.name = "bias", .shape = {3}, .compute_copy = false, .product_bias = true});
  list.declare({.name = "norm", .shape = {3}, .compute_copy = false});
  const auto types = [&](DeviceKind target) {
    const FlatLayout layout(list, 1, DType::bfloat16, {}, target);
    std::vector<DType> found;
    for (const FlatLayout::FlatTensor& tensor : layout.tensors()) found.push_back(tensor.type);
    return found;
  };
  using enum DType;
  EXPECT_EQ(types(DeviceKind::cpu), (std::vector{bfloat16, float32, float32}));
  EXPECT_EQ(types(DeviceKind::cuda), (std::vector{bfloat16, bfloat16, float32}));
}

TEST(FlatLayout, WorkingWeightsAreCutAtTheSameRows) {
  for (const ParameterList& list : {blocks_of_odd_sizes(), make_tied_list()}) {
    const FlatLayout layout(list, 700, DType::bfloat16);
    for (std::size_t index = 0; index < layout.buckets().size(); ++index) {
      const FlatLayout::Bucket& bucket = layout.buckets()[index];
      for (const int shards : {1, 2, 3, 8, 64}) {
        const std::vector<std::int64_t> bounds = layout.shard_bounds(shards)[index],
                                        bytes = layout.working_bounds(bucket, bounds);
        ASSERT_EQ(bytes.size(), bounds.size());
        EXPECT_EQ(bytes.front(), bucket.working_begin);
        EXPECT_EQ(bytes.back(), bucket.working_end);
        // A row is between the same two cuts in both layouts.
        for (const ops::FlatRow& row : make_rows(layout.runs())) {
          if (row.offset < bucket.begin || row.offset >= bucket.end) continue;
          const FlatLayout::FlatTensor& slot =
              layout.tensors()[static_cast<std::size_t>(row.tensor)];
          const std::int64_t begin = slot.working_begin +
                                     (row.offset - slot.offset) * size_of(slot.type),
                             end = begin + row.elements * size_of(slot.type);
          for (std::size_t cut = 0; cut < bounds.size(); ++cut) {
            EXPECT_EQ(bounds[cut] <= row.offset, bytes[cut] <= begin);
            EXPECT_EQ(bounds[cut] >= row.offset + row.elements, bytes[cut] >= end);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
