// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/advice.hpp"

#include <fmt/format.h>

#include "trireme/base/text.hpp"
#include "trireme/model/family.hpp"
#include "trireme/optim/schedule.hpp"

namespace trireme::train {
namespace {

// A warm-up of the rate from zero avoids divergence in the first epochs (Goyal et al. 2017).
constexpr double max_scale_without_warmup = 8;
// Beyond this batch the accuracy of SGD with a linearly scaled rate falls (Goyal et al. 2017).
constexpr std::int64_t max_linear_sgd_batch = 8192;

// The parts of a schedule that warm-ups usually take.
constexpr double min_warmup = 0.01, max_warmup = 0.1;

}  // namespace

std::optional<std::string> warmup_remark(const deck::Deck& deck, const ResolvedLayout& layout) {
  if (!deck.schedule.warmup || layout.schedule_steps == 0) return std::nullopt;
  const std::int64_t all = layout.schedule_steps,
                     warmup = optim::Schedule(deck.schedule, deck.batch.global, all, layout.scale)
                                  .warmup_steps();
  const double share = static_cast<double>(warmup) / static_cast<double>(all);
  if (share >= min_warmup && share <= max_warmup) return std::nullopt;
  return fmt::format(
      "schedule.warmup takes {:.3g} % of the schedule, {} of {} steps; 1 to 10 % are usual",
      100 * share, warmup, all);
}

std::vector<std::string> schedule_warnings(const deck::Deck& deck) {
  std::vector<std::string> warnings;
  const optim::ScheduleOptions& schedule = deck.schedule;
  const double factor =
      optim::rate_scale(schedule.scaling, deck.batch.max_global(), schedule.base_batch);
  const bool has_warmup = (schedule.warmup && schedule.warmup->value > 0) ||
                          schedule.kind == optim::ScheduleKind::one_cycle;
  if (!has_warmup && factor > max_scale_without_warmup)
    warnings.push_back(fmt::format(
        "schedule.scaling raises the rate {:.3g} times, to {:.3g}, without a warm-up; add for "
        "example warmup = \"5 epochs\" to [schedule]",
        factor, schedule.rate * factor));
  const std::int64_t largest = deck.batch.max_global();
  if (const optim::UpdateRule* better = deck.optimizer.rule->rule_of_large_batches;
      better != nullptr && schedule.scaling == optim::RateScaling::linear &&
      largest > max_linear_sgd_batch)
    warnings.push_back(
        fmt::format("{}: SGD with schedule.scaling = \"linear\" loses accuracy beyond {} samples; "
                    "use optimizer.kind = \"{}\", or a smaller batch",
                    deck.batch.ramp.empty() ? fmt::format("batch.global = {}", largest)
                                            : fmt::format("batch.ramp reaches {} samples", largest),
                    max_linear_sgd_batch, better->word));
  return warnings;
}

std::optional<std::string> batch_norm_remark(const deck::Deck& deck) {
  const std::int64_t global = deck.batch.max_global(), micro = deck.batch.micro;
  if (family_of(deck.model).missing_batch_norm(deck.model) || micro == global) return std::nullopt;
  return fmt::format(
      "batch norm computes its statistics from batch.micro = {} samples, not from the {} of a "
      "step; parallel.sync_batch_norm joins those of data ranks, and norm = \"group\" does not "
      "depend on the batch",
      micro, global);
}

std::optional<std::string> memory_shortage(const MemoryPlan& plan, const ReplicaOptions& options,
                                           const parallel::MeshShape& shape, int world_rank,
                                           DeviceKind target, std::int64_t memory_bytes) {
  const bool on_host = in_host_memory(target) || target == DeviceKind::emulated;
  const auto needed = [&](const MemoryPlan& some) {
    return some.total() + (on_host ? some.host_total() : 0);
  };
  if (needed(plan) <= memory_bytes) return std::nullopt;
  const std::string message =
      on_host ? fmt::format("a rank needs {}, but this host has {} of memory",
                            format_bytes(needed(plan)), format_bytes(memory_bytes))
              : fmt::format("the run needs {} on its device, which has {}",
                            format_bytes(needed(plan)), format_bytes(memory_bytes));
  if (!options.tokens())
    return message + "; use a smaller batch.micro, smaller images, or more ranks";
  ReplicaOptions smaller = options;
  for (const std::int64_t tile : {512, 256, 128, 64, 32}) {
    if (!family_of(smaller.model).lower_head_tile(smaller.model, tile)) continue;
    const std::int64_t bytes = needed(Replica::measure(smaller, shape, world_rank, target));
    if (bytes <= memory_bytes)
      return message +
             fmt::format("; with model.head_tile_mb = {} it needs {}", tile, format_bytes(bytes));
  }
  return message + "; use a smaller batch.micro, parallel.recompute, or more ranks";
}

}  // namespace trireme::train
