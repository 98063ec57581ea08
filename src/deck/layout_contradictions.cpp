// SPDX-License-Identifier: Apache-2.0
//
// Checks of the deck that concern the shape of the model and its layout over ranks: [model] of a
// gpt, and [parallel]. find_contradictions() calls check_model() and check_parallel() once.
// See contradictions.cpp for the pattern of a check.
#include <cmath>

#include "contradiction_checks.hpp"
#include "trireme/deck/batch_rule.hpp"
#include "trireme/model/rules.hpp"

namespace trireme::deck {

namespace {

using model::ModelKind;
using parallel::PipelineKind;

/// Requires that parallel.tensor divides the extents that it splits.
void check_tensor(const Deck& deck, Reader& reader) {
  if (any_wrong(reader, {"model.kind", "parallel.tensor", "model.heads", "model.kv_heads",
                         "model.mlp_width", "model.width"}))
    return;
  const auto broken = model::broken_split_rule(deck.model, deck.parallel.tensor, notes_on(reader));
  if (broken) report(reader, *broken);
}

/// Requires a second residual block for stochastic depth, whose probability is 0 at the first.
void check_drop_path(const Deck& deck, Reader& reader) {
  if (any_wrong(reader, {"model.kind", "model.layers", "model.drop_path"})) return;
  const model::TransformerOptions& gpt = deck.model.gpt;
  if (deck.model.kind == ModelKind::gpt && gpt.drop_path > 0 && gpt.layers == 1)
    reader.add_mistake(
        "model.drop_path",
        fmt::format("{} is the probability at the last block, and 0 that at the "
                    "first, but model.layers = 1{}; use drop_path = 0, or layers = 2",
                    gpt.drop_path, notes_on(reader)("model.layers")));
}

/// Requires that sequence parallelism has a tensor group whose size divides the rows.
void check_sequence(const Deck& deck, Reader& reader) {
  if (!deck.parallel.sequence ||
      any_wrong(reader, {"model.kind", "model.context", "parallel.sequence", "parallel.tensor",
                         "batch.micro"}))
    return;
  const std::int64_t tensor = deck.parallel.tensor;
  if (tensor == 1) {
    const std::int64_t sizes =
        deck.model.kind == ModelKind::gpt ? model::max_tensor_size(deck.model.gpt) : 1;
    std::int64_t tensor_size = 2;
    while (tensor_size < sizes && sizes % tensor_size != 0) ++tensor_size;
    reader.add_mistake("parallel.sequence",
                       fmt::format("true splits rows over the tensor group, but parallel.tensor = "
                                   "1{}; use sequence = false{}",
                                   notes_on(reader)("parallel.tensor"),
                                   sizes > 1 ? fmt::format(", or tensor = {}", tensor_size) : ""));
  } else if (const auto broken = model::broken_row_rule(deck.batch.micro, deck.model.gpt.context,
                                                        tensor, notes_on(reader))) {
    report(reader, *broken);
  }
}

/// Requires that the interleaved schedule and the number of chunks agree.
void check_pipeline(const Deck& deck, Reader& reader) {
  if (any_wrong(reader,
                {"parallel.pipeline", "parallel.pipeline_schedule", "parallel.pipeline_chunks"}))
    return;
  const parallel::ParallelOptions& parallel = deck.parallel;
  const bool interleaved = parallel.pipeline_schedule == PipelineKind::interleaved;
  if (interleaved && parallel.pipeline < 2)
    reader.add_mistake(
        "parallel.pipeline_schedule",
        fmt::format("\"interleaved\" needs two stages or more, but parallel.pipeline = "
                    "{}{}; use pipeline = 2, or \"1f1b\" with pipeline_chunks = 1",
                    parallel.pipeline, notes_on(reader)("parallel.pipeline")));
  else if (interleaved && parallel.pipeline_chunks < 2)
    reader.add_mistake(
        "parallel.pipeline_schedule",
        fmt::format("\"interleaved\" needs two chunks a stage or more, but "
                    "parallel.pipeline_chunks = {}{}; use pipeline_chunks = 2, or \"1f1b\"",
                    parallel.pipeline_chunks, notes_on(reader)("parallel.pipeline_chunks")));
  else if (!interleaved && parallel.pipeline_chunks > 1)
    reader.add_mistake(
        "parallel.pipeline_chunks",
        fmt::format("{} chunks a stage need pipeline_schedule = \"interleaved\"; use "
                    "that, or pipeline_chunks = 1",
                    parallel.pipeline_chunks));
}

/// Requires settings of parallel.sync that replicas with different weights can follow.
void check_sync(const Deck& deck, Reader& reader) {
  if (any_wrong(reader, {"parallel.sync", "parallel.shard", "parallel.outer_momentum"})) return;
  const parallel::ParallelOptions& parallel = deck.parallel;
  const bool periodic = parallel.sync == parallel::SyncKind::periodic;
  if (periodic && parallel.shard != parallel::ShardKind::none)
    reader.add_mistake(
        "parallel.sync",
        fmt::format("\"every {} steps\": between two averages each rank has weights of "
                    "its own, which cannot be sharded; use shard = \"none\", "
                    "or sync = \"step\" or \"delayed\"",
                    parallel.sync_every));
  if (!periodic && parallel.outer_momentum > 0)
    reader.add_mistake(
        "parallel.outer_momentum",
        fmt::format("{} applies to the average every n steps, but parallel.sync = \"{}\"{}; "
                    "use outer_momentum = 0, or sync = \"every 8 steps\"",
                    parallel.outer_momentum,
                    parallel.sync == parallel::SyncKind::delayed ? "delayed" : "step",
                    notes_on(reader)("parallel.sync")));
}

/// Requires a model with batch norm, replicas with the same weights, and groups that divide the
/// data ranks. If their number follows from that of all ranks, resolve_layout() checks it.
void check_batch_norm(const Deck& deck, Reader& reader) {
  const parallel::ParallelOptions& parallel = deck.parallel;
  const char* key = "parallel.sync_batch_norm";
  if (parallel.sync_batch_norm == 0 || any_wrong(reader, {key, "model.kind"})) return;
  const std::string joins = fmt::format(
      "{} joins the statistics of batch norm",
      parallel.sync_batch_norm < 0 ? "true" : fmt::format("{}", parallel.sync_batch_norm));
  if (deck.model.kind != ModelKind::resnet) {
    reader.add_mistake(key, fmt::format("{}, but model.kind = \"{}\" has none; use "
                                        "sync_batch_norm = false",
                                        joins, to_string(deck.model.kind)));
  } else if (deck.model.norm != model::ResnetNorm::batch && !any_wrong(reader, {"model.norm"})) {
    reader.add_mistake(
        key, fmt::format("{}, but model.norm = \"group\" takes those of each sample by itself; use "
                         "sync_batch_norm = false, or norm = \"batch\"",
                         joins));
  } else if (parallel.sync == parallel::SyncKind::periodic &&
             !any_wrong(reader, {"parallel.sync"})) {
    reader.add_mistake(
        key,
        fmt::format("{} in every micro-batch, but with parallel.sync = \"every {} steps\" each "
                    "data rank trains by itself; use sync_batch_norm = false, or sync = "
                    "\"step\" or \"delayed\"",
                    joins, parallel.sync_every));
  } else if (parallel.data > 0 && !any_wrong(reader, {"parallel.data"})) {
    if (const auto broken = broken_batch_norm_rule(parallel, parallel.data, false))
      report(reader, *broken);
  }
}

/// Requires that evaluations and checkpoints coincide with averages of the weights. Between two
/// averages the replicas differ, so there is no single state to evaluate or to save.
void check_intervals(const Deck& deck, Reader& reader) {
  if (deck.parallel.sync != parallel::SyncKind::periodic || any_wrong(reader, {"parallel.sync"}))
    return;
  const int every = deck.parallel.sync_every;
  for (const auto& [key, interval] : {std::pair("evaluate.every", deck.evaluate.every),
                                      std::pair("checkpoint.every", deck.checkpoint.every)}) {
    if (interval.unit != Duration::Unit::steps || std::fmod(interval.value, every) == 0 ||
        any_wrong(reader, {key}))
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

/// Requires sharded parameters if parameters are offloaded.
void check_offload(const Deck& deck, Reader& reader) {
  if (any_wrong(reader, {"parallel.offload", "parallel.shard"})) return;
  if (deck.parallel.offload.parameters && deck.parallel.shard != parallel::ShardKind::parameters)
    reader.add_mistake("parallel.offload",
                       fmt::format("\"parameters\" are loaded block by block, as with shard = "
                                   "\"parameters\"; use that (on one rank too), or leave "
                                   "\"parameters\" out"));
}

}  // namespace

void check_model(const Deck& deck, Reader& reader) {
  check_drop_path(deck, reader);
  if (deck.model.kind != ModelKind::gpt ||
      any_wrong(reader,
                {"model.kind", "model.width", "model.heads", "model.kv_heads", "model.positions"}))
    return;
  for (const BrokenRule& broken : model::broken_head_rules(deck.model.gpt, notes_on(reader)))
    report(reader, broken);
}

void check_parallel(const Deck& deck, DeckPurpose purpose, Reader& reader) {
  check_tensor(deck, reader);
  check_sync(deck, reader);
  check_intervals(deck, reader);
  check_offload(deck, reader);
  // An evaluation has a schedule of its own, joins no statistics, and may run on other ranks than
  // the deck says. The model checks the rows of sequence parallelism again.
  if (purpose == DeckPurpose::evaluation) return;
  check_sequence(deck, reader);
  check_pipeline(deck, reader);
  check_batch_norm(deck, reader);
}

}  // namespace trireme::deck
