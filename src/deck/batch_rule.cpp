#include "trireme/deck/batch_rule.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::deck {

std::optional<BrokenRule> broken_batch_rule(const BatchOptions& batch, std::int64_t data_ranks,
                                            const KeyNotes& notes) {
  const auto& [global, micro] = batch;
  const std::int64_t replicas = std::max<std::int64_t>(data_ranks, 1);
  if (global % (micro * replicas) == 0) return std::nullopt;
  const char* key = notes.is_default("batch.global") ? "batch.micro" : "batch.global";
  // batch.micro can be the remedy only if each replica takes the same number of samples.
  std::string remedy =
      fmt::format("use batch.global = {}", nearest_multiples(global, micro * replicas));
  if (global % replicas == 0)
    remedy += fmt::format(", or batch.micro = {}", largest_divisor(global / replicas, micro));
  if (global % micro != 0 && data_ranks == 0)
    return BrokenRule{
        key, fmt::format("batch.global = {}{} is not a multiple of batch.micro = {}{} (a step is "
                         "cut into whole micro-batches); {}",
                         global, notes.inner("batch.global"), micro, notes("batch.micro"), remedy)};
  return BrokenRule{
      key, fmt::format("batch.global = {}{} is not divisible by batch.micro = {}{} x {} data ranks "
                       "(each replica needs whole micro-batches); {}",
                       global, notes.inner("batch.global"), micro, notes.inner("batch.micro"),
                       replicas, remedy)};
}

}  // namespace trireme::deck
