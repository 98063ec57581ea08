// SPDX-License-Identifier: Apache-2.0
//
// Rules of the batch: a step divides into whole micro-batches on every replica, and batch norm over
// ranks into whole groups of them. Each broken rule names the values and the nearest valid ones.
// Called for the deck (contradictions.cpp) and for the ranks of a run (train/layout.cpp).
#include "trireme/deck/batch_rule.hpp"

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::deck {
namespace {

/// Returns the values of both keys that come nearest to an odd batch.micro and fit all rules.
std::string remedy_for_odd_micro(const BatchOptions& batch, std::int64_t data_ranks) {
  const std::int64_t global = batch.global, micro = batch.micro;
  const std::int64_t share = global % data_ranks == 0 ? global / data_ranks : 0;
  // An even divisor is twice a divisor of the half.
  if (share > 0 && share % 2 == 0) {
    const std::int64_t half = share / 2;
    std::int64_t above = (micro + 1) / 2;
    while (above <= half && half % above != 0) ++above;
    std::string values;
    if (micro > 1) values = fmt::format("{}", 2 * largest_divisor(half, micro / 2));
    if (above <= half) values += fmt::format("{}{}", values.empty() ? "" : " or ", 2 * above);
    return "use batch.micro = " + values;
  }
  const std::int64_t even = micro + 1;
  return fmt::format("use batch.micro = {} with batch.global = {}", even,
                     nearest_multiples(global, even * data_ranks));
}

/// Returns the sizes of groups next to `size` that divide the data ranks: "2 or 4".
std::string group_sizes(int size, int data_ranks) {
  if (size > data_ranks) return fmt::format("{}, or true", data_ranks);
  int above = size;
  while (data_ranks % above != 0) ++above;
  const std::int64_t below = largest_divisor(data_ranks, size);
  return below > 1 ? fmt::format("{} or {}", below, above) : fmt::format("{}", above);
}

}  // namespace

std::optional<BrokenRule> broken_batch_rule(const BatchOptions& batch,
                                            const data::PairMixing& mixing, std::int64_t data_ranks,
                                            bool is_automatic, const KeyNotes& notes) {
  const std::int64_t global = batch.global, micro = batch.micro;
  if (mixing.is_on() && micro % 2 != 0)
    return BrokenRule{
        "batch.micro",
        fmt::format("batch.micro = {} is odd, but data.augment.{} mixes the samples of a "
                    "micro-batch in pairs; {}",
                    micro, mixing.mixup > 0 ? "mixup" : "cutmix",
                    remedy_for_odd_micro(batch, data_ranks))};
  if (global % (micro * data_ranks) == 0) return std::nullopt;
  const bool in_ramp = !batch.ramp.empty();
  const char* key = in_ramp                            ? "batch.ramp"
                    : notes.is_default("batch.global") ? "batch.micro"
                                                       : "batch.global";
  const std::string subject =
      in_ramp ? fmt::format("a step of {}", counted(global, "sample", "samples"))
              : fmt::format("batch.global = {}{}", global, notes.inner("batch.global"));
  // batch.micro can be the remedy only if each replica takes the same number of samples, of pairs
  // if they are mixed.
  const std::string multiples = nearest_multiples(global, micro * data_ranks);
  std::string remedy =
      in_ramp ? fmt::format("use {} samples", multiples) : "use batch.global = " + multiples;
  const std::int64_t unit = mixing.is_on() ? 2 : 1;
  if (global % (data_ranks * unit) == 0)
    remedy += fmt::format(", or batch.micro = {}",
                          unit * largest_divisor(global / data_ranks / unit, micro / unit));
  if (data_ranks == 1)
    return BrokenRule{
        key, fmt::format("{} is not a multiple of batch.micro = {}{} (a step is cut into whole "
                         "micro-batches); {}",
                         subject, micro, notes("batch.micro"), remedy)};
  const std::string replicas = is_automatic ? fmt::format("{} data ranks", data_ranks)
                                            : fmt::format("parallel.data = {}", data_ranks);
  return BrokenRule{
      key, fmt::format("{} is not divisible by batch.micro = {}{} x {} (each replica needs whole "
                       "micro-batches); {}",
                       subject, micro, notes.inner("batch.micro"), replicas, remedy)};
}

std::optional<BrokenRule> broken_batch_norm_rule(const parallel::ParallelOptions& parallel,
                                                 int data_ranks, bool is_automatic) {
  constexpr const char* key = "parallel.sync_batch_norm";
  const int ranks = parallel.sync_batch_norm;
  if (ranks == 0) return std::nullopt;
  const bool all = ranks == parallel::ParallelOptions::all_data_ranks;
  const std::string given = all ? "true" : fmt::format("{}", ranks),
                    replicas = is_automatic ? counted(data_ranks, "data rank", "data ranks")
                                            : fmt::format("parallel.data = {}", data_ranks);
  if (data_ranks == 1)
    return BrokenRule{
        key, fmt::format("{} = {} joins the statistics of several data ranks, but "
                         "here is {}; use sync_batch_norm = false, or {}",
                         key, given, replicas, is_automatic ? "more ranks" : "data = 2 or more")};
  if (all || data_ranks % ranks == 0) return std::nullopt;
  return BrokenRule{key, fmt::format("{} = {} does not divide {} (every group has as many "
                                     "neighbors); use {}",
                                     key, given, replicas, group_sizes(ranks, data_ranks))};
}

}  // namespace trireme::deck
