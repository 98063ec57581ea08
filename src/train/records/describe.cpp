// SPDX-License-Identifier: Apache-2.0
//
// Descriptions of layout and memory, printed by `trireme check` and at the start of a run's log.
#include "trireme/train/records/describe.hpp"

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::train {
namespace {

const char* name_of(parallel::PipelineKind kind) {
  switch (kind) {
    case parallel::PipelineKind::gpipe: return "gpipe";
    case parallel::PipelineKind::one_forward_one_backward: return "1f1b";
    case parallel::PipelineKind::interleaved: return "interleaved";
  }
  return "?";
}

}  // namespace

std::string describe_layout(const parallel::ParallelOptions& options,
                            const ResolvedLayout& layout) {
  std::string text = fmt::format("{} = {} data x {} tensor x {} pipeline",
                                 counted(layout.ranks(), "rank", "ranks"), layout.data,
                                 layout.tensor, layout.pipeline);
  if (options.sequence) text += ", sequence parallel";
  switch (options.shard) {
    case parallel::ShardKind::none: break;
    case parallel::ShardKind::optimizer: text += ", optimizer sharded"; break;
    case parallel::ShardKind::gradients: text += ", optimizer and gradients sharded"; break;
    case parallel::ShardKind::parameters:
      text += ", optimizer, gradients and parameters sharded";
      break;
  }
  std::string host;
  const auto add = [&host](bool is_offloaded, const char* name) {
    if (is_offloaded) host += (host.empty() ? "" : ", ") + std::string(name);
  };
  add(options.offload.optimizer, "optimizer");
  add(options.offload.parameters, "parameters");
  add(options.offload.activations, "activations");
  if (!host.empty()) text += fmt::format(", in host memory: {}", host);
  if (options.sync == parallel::SyncKind::delayed) text += ", updates delayed by one step";
  if (options.sync == parallel::SyncKind::periodic)
    text += fmt::format(", ranks averaged every {} steps", options.sync_every);
  if (options.recompute == 1) text += ", every block recomputed";
  if (options.recompute > 1) text += fmt::format(", one block in {} recomputed", options.recompute);
  return text;
}

std::string describe_step(std::int64_t micro, const ResolvedLayout& layout) {
  std::string text = counted(layout.global, "sample", "samples");
  if (layout.scale.tokens_per_sample > 0)
    text += fmt::format(" ({})",
                        counted(layout.global * layout.scale.tokens_per_sample, "token", "tokens"));
  return text + fmt::format(" = {} x {} of {}", counted(layout.data, "replica", "replicas"),
                            counted(layout.accumulation, "micro-batch", "micro-batches"),
                            counted(micro, "sample", "samples"));
}

std::string describe_ramp(const ResolvedLayout& layout) {
  std::string text;
  const std::vector<StepRow>& rows = layout.scale.rows;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", then ",
                        counted(rows[i].samples_per_step, "sample", "samples"));
    if (i + 1 < rows.size()) text += fmt::format(" to step {}", rows[i + 1].first_step - 1);
  }
  return text;
}

std::string describe_pipeline(const parallel::ParallelOptions& options,
                              const ResolvedLayout& layout) {
  const double bubble = static_cast<double>(layout.pipeline - 1) /
                        static_cast<double>(options.pipeline_chunks * layout.accumulation);
  return fmt::format("{}, {} stages x {}, {} per step: bubble {:.1f} %",
                     name_of(options.pipeline_schedule), layout.pipeline,
                     counted(options.pipeline_chunks, "chunk", "chunks"),
                     counted(layout.accumulation, "micro-batch", "micro-batches"), 100 * bubble);
}

double batch_norm_bytes(const parallel::ParameterList& parameters, const ReplicaOptions& options,
                        int group_size) {
  double bytes = 0;
  for (const parallel::ParameterList::Entry& entry : parameters.entries()) {
    if (entry.spec.role != parallel::Role::statistic) continue;
    const bool again = options.recompute > 0 && entry.block % options.recompute == 0;
    // One of two running statistics of its norm, with one number for each channel.
    const std::int64_t forward = sizeof(float) * (again ? 2 : 1), backward = sizeof(double);
    bytes += static_cast<double>(entry.spec.shape.elements() * (forward + backward));
  }
  return bytes * static_cast<double>(options.accumulation * (group_size - 1));
}

std::string describe_batch_norm(const deck::BatchOptions& batch, const ResolvedLayout& layout,
                                double bytes) {
  return fmt::format("statistics of {} neighboring data ranks, {}; a replica sends {} per step",
                     layout.batch_norm_ranks,
                     counted(batch.micro * layout.batch_norm_ranks, "sample", "samples"),
                     format_bytes(bytes));
}

std::string describe_sum_order(const SumOrderChoice& choice) {
  return fmt::format(
      "{} ({})", choice.order == comm::SumOrder::tree ? "tree order" : "the library's all-reduce",
      choice.reason);
}

std::string describe_memory(const MemoryPlan& plan) {
  const auto bytes = [](std::int64_t count) { return format_bytes(count); };
  const std::string keys_values =
      plan.keys_values > 0 ? fmt::format(", keys and values {}", bytes(plan.keys_values)) : "";
  std::string text = fmt::format(
      "{} (weights {}, gradients {}, optimizer {}, activations {}{}, workspace {})",
      bytes(plan.total()), bytes(plan.parameters + plan.prepared_weights), bytes(plan.gradients),
      bytes(plan.optimizer), bytes(plan.all_activations()), keys_values, bytes(plan.workspace));
  if (const std::int64_t offloaded = plan.host_total() - plan.host_checkpoint; offloaded > 0)
    text += fmt::format(" and {} of the host (weights {}, optimizer {}, activations {})",
                        bytes(offloaded), bytes(plan.host_parameters), bytes(plan.host_optimizer),
                        bytes(plan.host_activations));
  if (plan.host_checkpoint > 0)
    text += fmt::format(" and {} for the checkpoint being written", bytes(plan.host_checkpoint));
  return text;
}

}  // namespace trireme::train
