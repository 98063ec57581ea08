// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/records/describe.hpp"

#include <gtest/gtest.h>

#include "trireme/train/run/run.hpp"

namespace trireme::train {
namespace {

TEST(Describe, OneIsNotMany) {
  ResolvedLayout layout;
  EXPECT_EQ(describe_layout({}, layout), "1 rank = 1 data x 1 tensor x 1 pipeline");
  EXPECT_EQ(describe_step(1, layout), "1 sample = 1 replica x 1 micro-batch of 1 sample");
  layout.data = 2;
  layout.accumulation = 4;
  layout.scale.tokens_per_sample = 256;
  layout.global = 16;
  EXPECT_EQ(describe_step(2, layout),
            "16 samples (4096 tokens) = 2 replicas x 4 micro-batches of 2 samples");
}

TEST(Describe, NonDefaultValuesAreSaid) {
  parallel::ParallelOptions options;
  ResolvedLayout layout;
  layout.data = layout.tensor = layout.pipeline = 2;
  layout.accumulation = 8;
  options.sequence = true;
  options.shard = parallel::ShardKind::gradients;
  options.recompute = 3;
  EXPECT_EQ(describe_layout(options, layout),
            "8 ranks = 2 data x 2 tensor x 2 pipeline, sequence parallel, optimizer and gradients "
            "sharded, one block in 3 recomputed");
  EXPECT_EQ(describe_pipeline(options, layout),
            "1f1b, 2 stages x 1 chunk, 8 micro-batches per step: bubble 12.5 %");
  options.pipeline_schedule = parallel::PipelineKind::interleaved;
  options.pipeline_chunks = 2;
  EXPECT_EQ(describe_pipeline(options, layout),
            "interleaved, 2 stages x 2 chunks, 8 micro-batches per step: bubble 6.2 %");
}

TEST(Describe, BatchNormOfSeveralRanks) {
  ResolvedLayout layout;
  layout.data = 4;
  layout.batch_norm_ranks = 2;
  EXPECT_EQ(describe_batch_norm({.global = 64, .micro = 16}, layout, 3 << 20),
            "statistics of 2 neighboring data ranks, 32 samples; a replica sends 3.0 MiB per step");
}

TEST(ProgressMode, AThreadWhereItHasACoreOfItsOwn) {
  using enum comm::Engine::ProgressMode;
  EXPECT_EQ(choose_progress_mode(4, 1, 3), thread) << "bound to four cores";
  EXPECT_EQ(choose_progress_mode(4, 1, 4), polled);
  EXPECT_EQ(choose_progress_mode(1, 1, 1), polled) << "bound to one core, whatever the machine has";
  EXPECT_EQ(choose_progress_mode(8, 4, 1), thread)
      << "four ranks that may run anywhere on eight cores";
  EXPECT_EQ(choose_progress_mode(8, 4, 2), polled);
}

}  // namespace
}  // namespace trireme::train
