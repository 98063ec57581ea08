// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "replica.hpp"

namespace trireme::test {

/// One way to distribute a small language model over ranks: a row of a test's table.
struct Layout {
  const char* name;
  parallel::MeshShape mesh;
  parallel::ShardKind shard = parallel::ShardKind::none;
  bool sequence = false;
  int recompute = 0;
  parallel::PipelineKind schedule = parallel::PipelineKind::one_forward_one_backward;
  int chunks = 1;
};

/// Micro-batches of one step over all replicas.
constexpr std::int64_t micro_batches = 8;

/// Returns the options of small_gpt() for this layout. Buckets of 8 KiB make sure that there are
/// several.
inline train::ReplicaOptions small_gpt(std::int64_t layers, const Layout& layout) {
  train::ReplicaOptions options = small_gpt(layers);
  options.accumulation = micro_batches / layout.mesh.data;
  options.global = micro_batches * options.micro;
  options.bucket_bytes = 8192;
  options.shard = layout.shard;
  options.sequence = layout.sequence;
  options.recompute = layout.recompute;
  options.pipeline_schedule = layout.schedule;
  options.pipeline_chunks = layout.chunks;
  return options;
}

}  // namespace trireme::test
