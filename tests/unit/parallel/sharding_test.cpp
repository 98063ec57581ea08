// SPDX-License-Identifier: Apache-2.0
//
// ParameterShard: all ranks together own every row once; windows and chunks cover the owned rows
// and contain their positions in the working weights.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {
namespace {

/// Odd shapes, vectors that cannot be divided, a tensor with fewer rows than ranks, joined and tied
/// tensors.
ParameterList tensors_of_odd_shapes() {
  ParameterList list;
  list.begin_block(0);
  list.declare({.name = "embedding", .shape = {37, 6}, .tied = true});
  list.declare({.name = "positions", .shape = {2, 41}});
  list.begin_block(1);
  list.declare({.name = "norm", .shape = {11}, .compute_copy = false});
  list.declare({.name = "q", .shape = {7, 11}});
  list.declare({.name = "k", .shape = {3, 11}, .joined = true});
  list.declare({.name = "conv", .shape = {5, 3, 3, 3}, .inner = InnerOrder::channels_last});
  return list;
}

TEST(ParameterShard, TheOnlyRankOwnsTheFlatBuffers) {
  const ParameterList list = tensors_of_odd_shapes();
  const FlatLayout layout(list, 1, DType::bfloat16);
  const ParameterShard shard(list, layout, 0, 1);
  EXPECT_EQ(shard.elements(), layout.elements());
  ASSERT_EQ(shard.make_rows().size(), make_rows(layout.runs()).size());
  for (std::size_t i = 0; i < make_rows(layout.runs()).size(); ++i) {
    EXPECT_EQ(shard.make_rows()[i].offset, make_rows(layout.runs())[i].offset);
    EXPECT_EQ(shard.make_rows()[i].tensor, make_rows(layout.runs())[i].tensor);
  }
  for (std::int32_t index = 0; index < static_cast<std::int32_t>(list.entries().size()); ++index) {
    EXPECT_EQ(shard.owned_rows({index}).row_begin, 0);
    EXPECT_EQ(shard.owned_rows({index}).row_end, list.partition({index}).rows());
    EXPECT_EQ(shard.owned_rows({index}).offset, layout.tensor({index}).offset);
  }
}

TEST(ParameterShard, TheRanksTogetherOwnEveryRowOnce) {
  const ParameterList list = tensors_of_odd_shapes();
  for (const std::int64_t bucket_bytes : {1, 1 << 20}) {
    const FlatLayout layout(list, bucket_bytes, DType::float32);
    for (const int size : {2, 3, 8, 50}) {
      std::vector<std::int64_t> next(list.entries().size(),
                                     0);  // by tensor: the next row
      std::int64_t elements = 0;
      std::size_t rows = 0;
      for (int rank = 0; rank < size; ++rank) {
        const ParameterShard shard(list, layout, rank, size);
        elements += shard.elements();
        rows += shard.make_rows().size();
        for (std::size_t t = 0; t < next.size(); ++t) {
          const ParameterShard::OwnedRows& part = shard.owned_rows({static_cast<std::int32_t>(t)});
          ASSERT_LE(part.row_begin, part.row_end);
          if (part.row_begin == part.row_end) continue;
          EXPECT_EQ(part.row_begin, next[t]) << "rows go to the ranks in order";
          next[t] = part.row_end;
          const std::int64_t last =
              part.offset + (part.row_end - part.row_begin) *
                                list.partition({static_cast<std::int32_t>(t)}).row_elements();
          EXPECT_LE(0, part.offset);
          EXPECT_LE(last, shard.elements());
        }
      }
      for (std::size_t t = 0; t < next.size(); ++t)
        EXPECT_EQ(next[t], list.entries()[t].partition.rows());
      EXPECT_EQ(elements, layout.elements());
      EXPECT_EQ(rows, make_rows(layout.runs()).size());
    }
  }
}

TEST(ParameterShard, ChunksFillTheOwnedRowsAndKnowTheirWorkingWeights) {
  const ParameterList list = tensors_of_odd_shapes();
  const FlatLayout layout(list, 1, DType::bfloat16);
  for (const int size : {1, 2, 3, 8}) {
    for (int rank = 0; rank < size; ++rank) {
      const ParameterShard shard(list, layout, rank, size);
      for (const std::int64_t longest : {1, 7, 16384}) {
        std::vector<std::int64_t> filled(list.entries().size(), 0);
        for (const ops::FlatChunk& chunk : shard.chunks(shard.windows().front(), longest)) {
          const auto t = static_cast<std::size_t>(chunk.tensor);
          const ParameterShard::OwnedRows& part = shard.owned_rows({chunk.tensor});
          const FlatLayout::FlatTensor& slot = layout.tensors()[t];
          const std::int64_t in_tensor =
              part.row_begin * list.entries()[t].partition.row_elements() + filled[t];
          EXPECT_LE(chunk.elements, longest);
          EXPECT_EQ(chunk.offset, part.offset + filled[t]);
          EXPECT_EQ(chunk.working_type, list.entries()[t].spec.compute_copy ? ElementType::bfloat16
                                                                            : ElementType::float32);
          EXPECT_EQ(chunk.working_offset,
                    slot.working_begin +
                        in_tensor * static_cast<std::int64_t>(size_of(chunk.working_type)));
          filled[t] += chunk.elements;
        }
        for (std::size_t t = 0; t < filled.size(); ++t) {
          const ParameterShard::OwnedRows& part = shard.owned_rows({static_cast<std::int32_t>(t)});
          EXPECT_EQ(filled[t],
                    (part.row_end - part.row_begin) * list.entries()[t].partition.row_elements());
        }
      }
    }
  }
}

TEST(ParameterShard, OneWindowIsEverything) {
  const ParameterList list = tensors_of_odd_shapes();
  const FlatLayout layout(list, 1, DType::float32);
  for (const int size : {1, 3, 50}) {
    for (int rank = 0; rank < size; ++rank) {
      const ParameterShard shard(list, layout, rank, size);
      ASSERT_EQ(shard.windows().size(), 1u);
      const ParameterShard::Window& all = shard.windows().front();
      EXPECT_EQ(all.begin, 0);
      EXPECT_EQ(all.end, shard.elements());
      EXPECT_EQ(all.row_end - all.row_begin, shard.make_rows().size());
      EXPECT_EQ(all.range_end - all.range_begin, shard.tensor_ranges().size());
      EXPECT_EQ(shard.largest_window_elements(), shard.elements());
    }
  }
}

TEST(ParameterShard, WindowsCutBucketsBetweenRowsAndLeaveEveryRowWhereItIs) {
  const ParameterList list = tensors_of_odd_shapes();
  std::int64_t cuts = 0;
  for (const std::int64_t bucket_bytes : {1, 1 << 20}) {
    const FlatLayout layout(list, bucket_bytes, DType::bfloat16);
    for (const std::int64_t limit : {1, 11, 100, 1 << 20}) {
      for (const int size : {1, 3, 50}) {
        for (int rank = 0; rank < size; ++rank) {
          const ParameterShard whole(list, layout, rank, size),
              shard(list, layout, rank, size, limit);
          std::int64_t end = 0, longest = 0;
          std::size_t row = 0, run = 0;
          for (const ParameterShard::Window& window : shard.windows()) {
            EXPECT_EQ(window.begin, end);
            EXPECT_EQ(window.row_begin, row);
            EXPECT_EQ(window.range_begin, run);
            end = window.end;
            longest = std::max(longest, window.elements());
            std::int64_t in_rows = 0, in_runs = 0, in_chunks = 0, longest_row = 0;
            for (; row < window.row_end; ++row) {
              EXPECT_EQ(window.begin + shard.make_rows()[row].offset,
                        whole.make_rows()[row].offset);
              in_rows += shard.make_rows()[row].elements;
              longest_row = std::max(longest_row, shard.make_rows()[row].elements);
            }
            for (; run < window.range_end; ++run) in_runs += shard.tensor_ranges()[run].elements;
            for (const ops::FlatChunk& chunk : shard.chunks(window, 7)) {
              EXPECT_LE(chunk.offset + chunk.elements, window.elements());
              in_chunks += chunk.elements;
            }
            EXPECT_LE(in_rows, std::max(limit, longest_row));
            EXPECT_EQ(in_runs, in_rows);
            EXPECT_EQ(in_chunks, in_rows);
          }
          EXPECT_EQ(end, shard.elements());
          EXPECT_EQ(row, shard.make_rows().size());
          EXPECT_EQ(run, shard.tensor_ranges().size());
          EXPECT_EQ(longest, shard.largest_window_elements());
          for (const ParameterShard::Bucket& bucket : shard.buckets()) {
            EXPECT_EQ(bucket.window_begin == bucket.window_end, bucket.elements() == 0);
            cuts += static_cast<std::int64_t>(bucket.window_end - bucket.window_begin > 1);
            if (bucket.elements() == 0) continue;
            EXPECT_EQ(shard.windows()[bucket.window_begin].begin, bucket.begin);
            EXPECT_EQ(shard.windows()[bucket.window_end - 1].end, bucket.end);
          }
        }
      }
    }
  }
  EXPECT_GT(cuts, 0);
}

/// Frozen tensors of every kind: tied, joined, a whole block, a part of a block.
TEST(ParameterShard, FrozenTensorsAreBehindAllOthers) {
  for (const std::vector<std::string>& names : {std::vector<std::string>{"positions"},
                                                {"embedding", "norm"},
                                                {"q", "k"},
                                                {"norm", "q", "k", "conv"}}) {
    ParameterList list = tensors_of_odd_shapes();
    for (const std::string& name : names) list.freeze({list.find(name)});
    for (const std::int64_t bucket_bytes : {1, 1 << 20}) {
      const FlatLayout layout(list, bucket_bytes, DType::bfloat16);
      for (std::size_t b = 0; b < layout.buckets().size(); ++b)
        EXPECT_EQ(layout.buckets()[b].frozen, b >= layout.trained_buckets());
      for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
        const FlatLayout::FlatTensor& place = layout.tensors()[t];
        const ParameterSpec& spec = list.entries()[t].spec;
        EXPECT_EQ(place.offset >= layout.trained_elements(), spec.frozen) << spec.name;
        if (spec.tied) continue;
        EXPECT_EQ(
            spec.frozen ? layout.frozen_bucket_of(place.block) : layout.bucket_of(place.block),
            place.bucket)
            << spec.name;
      }
      for (const int size : {1, 3, 50}) {
        std::int64_t trained = 0;
        for (int rank = 0; rank < size; ++rank) {
          for (const std::int64_t limit : {0, 11, 100}) {
            const ParameterShard shard(list, layout, rank, size, limit);
            if (limit == 0) trained += shard.trained_elements();
            // The windows cover the buffer without gaps, and the first ones the trained part.
            std::int64_t end = 0;
            for (const ParameterShard::Window& window : shard.windows()) {
              EXPECT_EQ(window.begin, end);
              end = window.end;
              for (std::size_t row = window.row_begin; row < window.row_end; ++row)
                EXPECT_EQ(list[{shard.make_rows()[row].tensor}].frozen,
                          window.begin >= shard.trained_elements());
            }
            EXPECT_EQ(end, shard.elements());
            const auto windows = shard.trained_windows();
            EXPECT_EQ(windows.empty() ? 0 : windows.back().end, shard.trained_elements());
          }
        }
        EXPECT_EQ(trained, layout.trained_elements());
      }
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
