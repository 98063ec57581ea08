#include "trireme/deck/batch_rule.hpp"

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::deck {

std::optional<BrokenRule> broken_batch_rule(const BatchOptions& batch, std::int64_t data_ranks,
                                            bool is_automatic, const KeyNotes& notes) {
  const auto& [global, micro] = batch;
  if (global % (micro * data_ranks) == 0) return std::nullopt;
  const char* key = notes.is_default("batch.global") ? "batch.micro" : "batch.global";
  // batch.micro can be the remedy only if each replica takes the same number of samples.
  std::string remedy =
      fmt::format("use batch.global = {}", nearest_multiples(global, micro * data_ranks));
  if (global % data_ranks == 0)
    remedy += fmt::format(", or batch.micro = {}", largest_divisor(global / data_ranks, micro));
  if (data_ranks == 1)
    return BrokenRule{
        key, fmt::format("batch.global = {}{} is not a multiple of batch.micro = {}{} (a step is "
                         "cut into whole micro-batches); {}",
                         global, notes.inner("batch.global"), micro, notes("batch.micro"), remedy)};
  const std::string replicas = is_automatic ? fmt::format("{} data ranks", data_ranks)
                                            : fmt::format("parallel.data = {}", data_ranks);
  return BrokenRule{
      key, fmt::format("batch.global = {}{} is not divisible by batch.micro = {}{} x {} (each "
                       "replica needs whole micro-batches); {}",
                       global, notes.inner("batch.global"), micro, notes.inner("batch.micro"),
                       replicas, remedy)};
}

}  // namespace trireme::deck
