#pragma once

#include <string>

#include "trireme/parallel/options.hpp"
#include "trireme/train/layout.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

// A layout in words: what `check` prints and the log of a run begins with.

/// "8 ranks = 2 data x 2 tensor x 2 pipeline, sequence parallel, optimizer sharded": what is at its
/// default is not mentioned.
std::string describe_layout(const parallel::ParallelOptions& options, const ResolvedLayout& layout);

/// "16 samples (4096 tokens) = 2 replicas x 1 micro-batch of 8 samples".
std::string describe_step(const BatchOptions& batch, const ResolvedLayout& layout);

/// "1f1b, 2 stages x 1 chunk, 8 micro-batches a step: bubble 12.5 %": the idle time over the busy
/// time where passes take equally long on all stages (Narayanan et al. 2021, section 2.2).
std::string describe_pipeline(const parallel::ParallelOptions& options,
                              const ResolvedLayout& layout);

/// "1.2 GiB (weights .., gradients .., optimizer .., activations .., workspace ..)", what lies in
/// host memory, and what a checkpoint under way takes of it.
std::string describe_memory(const MemoryPlan& plan);

}  // namespace trireme::train
