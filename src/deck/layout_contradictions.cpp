// SPDX-License-Identifier: Apache-2.0
//
// Checks between [parallel] and other tables. find_contradictions() calls check_parallel() once.
// See contradictions.cpp for the pattern of a check.
#include <cmath>

#include "contradiction_checks.hpp"
#include "trireme/deck/batch_rule.hpp"
#include "trireme/model/family.hpp"
#include "trireme/parallel/keys.hpp"

namespace trireme::deck {

namespace {

/// Requires that parallel.tensor divides the extents that it splits.
void check_tensor(const Deck& deck, Reader& reader) {
  if (reader.any_wrong({"model.kind", "parallel.tensor", "model.heads", "model.kv_heads",
                        "model.mlp_width", "model.width"}))
    return;
  const auto broken = model::broken_split_rule(deck.model, deck.parallel.tensor, reader.notes());
  if (broken) reader.add_mistake(*broken);
}

/// Requires that sequence parallelism has a tensor group whose size divides the rows.
void check_sequence(const Deck& deck, Reader& reader) {
  if (!deck.parallel.sequence ||
      reader.any_wrong(
          {"model.kind", "model.context", "parallel.sequence", "parallel.tensor", "batch.micro"}))
    return;
  const std::int64_t tensor = deck.parallel.tensor;
  if (tensor == 1) {
    const std::int64_t sizes = model::max_tensor_size(deck.model);
    std::int64_t tensor_size = 2;
    while (tensor_size < sizes && sizes % tensor_size != 0) ++tensor_size;
    reader.add_mistake("parallel.sequence",
                       fmt::format("true splits rows over the tensor group, but parallel.tensor = "
                                   "1{}; use sequence = false{}",
                                   reader.notes()("parallel.tensor"),
                                   sizes > 1 ? fmt::format(", or tensor = {}", tensor_size) : ""));
  } else if (takes_tokens(deck.model)) {
    const model::Family& family = family_of(deck.model);
    const Shape input{deck.batch.micro, family.context(deck.model)};
    const auto broken = family.broken_row_rule(deck.model, input, tensor, reader.notes());
    if (broken) reader.add_mistake(*broken);
  }
}

/// Requires a model with batch norm, replicas with the same weights, and groups that divide the
/// data ranks. If their number follows from that of all ranks, resolve_layout() checks it.
void check_batch_norm(const Deck& deck, Reader& reader) {
  const parallel::ParallelOptions& parallel = deck.parallel;
  const char* key = "parallel.sync_batch_norm";
  if (parallel.sync_batch_norm == 0 || reader.any_wrong({key, "model.kind"})) return;
  const std::string joins = fmt::format(
      "{} joins the statistics of batch norm",
      parallel.sync_batch_norm < 0 ? "true" : fmt::format("{}", parallel.sync_batch_norm));
  if (const auto missing = family_of(deck.model).missing_batch_norm(deck.model)) {
    if (!reader.any_wrong({missing->key}))
      reader.add_mistake(key, fmt::format("{}, but {}", joins, missing->message));
  } else if (parallel.sync == parallel::SyncKind::periodic &&
             !reader.any_wrong({"parallel.sync"})) {
    reader.add_mistake(
        key,
        fmt::format("{} in every micro-batch, but with parallel.sync = \"every {} steps\" each "
                    "data rank trains by itself; use sync_batch_norm = false, or sync = "
                    "\"step\" or \"delayed\"",
                    joins, parallel.sync_every));
  } else if (parallel.data > 0 && !reader.any_wrong({"parallel.data"})) {
    if (const auto broken = broken_batch_norm_rule(parallel, parallel.data, false))
      reader.add_mistake(*broken);
  }
}

/// Requires that evaluations and checkpoints coincide with averages of the weights. Between two
/// averages the replicas differ, so there is no single state to evaluate or to save.
void check_intervals(const Deck& deck, Reader& reader) {
  if (deck.parallel.sync != parallel::SyncKind::periodic || reader.any_wrong({"parallel.sync"}))
    return;
  const int every = deck.parallel.sync_every;
  for (const auto& [key, interval] : {std::pair("evaluate.every", deck.evaluate.every),
                                      std::pair("checkpoint.every", deck.checkpoint.every)}) {
    if (interval.unit != Duration::Unit::steps || std::fmod(interval.value, every) == 0 ||
        reader.any_wrong({key}))
      continue;
    const double below = std::floor(interval.value / every) * every;
    const std::string nearest = below > 0 ? fmt::format("\"{} steps\" or ", below) : "";
    reader.add_mistake(
        key,
        fmt::format("\"{}\" is not a multiple of parallel.sync = \"every {} steps\" (the ranks "
                    "have one state only after an average); use {}\"{} steps\"",
                    to_string(interval), every, nearest, below + every));
  }
}

}  // namespace

void check_parallel(const Deck& deck, DeckPurpose purpose, Reader& reader) {
  check_tensor(deck, reader);
  parallel::check_keys(deck.parallel, reader);
  check_intervals(deck, reader);
  // An evaluation has a schedule of its own, joins no statistics, and may run on other ranks than
  // the deck says. The model checks the rows of sequence parallelism again.
  if (purpose == DeckPurpose::evaluation) return;
  check_sequence(deck, reader);
  parallel::check_pipeline_keys(deck.parallel, reader);
  check_batch_norm(deck, reader);
}

}  // namespace trireme::deck
