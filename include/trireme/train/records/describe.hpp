// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "trireme/parallel/options.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/step/replica.hpp"
#include "trireme/train/step/sum_order.hpp"

namespace trireme::train {

// One-line descriptions of a layout, printed by `trireme check` and at the start of a run's log.

/// Returns for example "8 ranks = 2 data x 2 tensor x 2 pipeline, sequence parallel, optimizer
/// sharded". Options at their defaults are left out.
std::string describe_layout(const parallel::ParallelOptions& options, const ResolvedLayout& layout);

/// Returns for example "16 samples (4096 tokens) = 2 replicas x 1 micro-batch of 8 samples".
/// `micro`: the samples of a micro-batch.
std::string describe_step(std::int64_t micro, const ResolvedLayout& layout);

/// Returns for example "256 samples to step 1170, then 1024 samples". `layout`: of a ramp.
std::string describe_ramp(const ResolvedLayout& layout);

/// Returns for example "1f1b, 2 stages x 1 chunk, 8 micro-batches per step: bubble 12.5 %". The
/// bubble is idle time over busy time if passes take equally long on all stages (Narayanan et al.
/// 2021, section 2.2).
std::string describe_pipeline(const parallel::ParallelOptions& options,
                              const ResolvedLayout& layout);

/// Returns the bytes that a replica sends in a step for batch norm of `group_size` data ranks.
///
/// For each channel and other rank of the group: mean and variance in forward (8 bytes), two sums
/// in backward (16 bytes). Recomputed blocks repeat their forward.
double batch_norm_bytes(const parallel::ParameterList& parameters, const ReplicaOptions& options,
                        int group_size);

/// Returns for example "statistics of 2 neighboring data ranks, 64 samples; a replica sends 1.2 MiB
/// per step". `bytes`: batch_norm_bytes().
std::string describe_batch_norm(const deck::BatchOptions& batch, const ResolvedLayout& layout,
                                double bytes);

/// Returns for example "tree order (run.deterministic = true)".
std::string describe_sum_order(const SumOrderChoice& choice);

/// Returns for example "1.2 GiB (weights .., gradients .., optimizer .., activations .., workspace
/// ..)". Adds offloaded host memory and the host memory of a background checkpoint, if there are
/// any.
std::string describe_memory(const MemoryPlan& plan);

}  // namespace trireme::train
