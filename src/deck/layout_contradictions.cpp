// Checks of the deck that concern the shape of the model and its layout over ranks: [model] of a
// gpt, and [parallel]. find_contradictions() calls check_model() and check_parallel() once.
// See contradictions.cpp for the pattern of a check.
#include <cmath>
#include <numeric>

#include "contradiction_checks.hpp"
#include "trireme/base/text.hpp"

namespace trireme::deck {

namespace {

using model::ModelKind;
using parallel::PipelineKind;

/// Returns the greatest size that a tensor group can have. It divides heads, kv_heads and
/// mlp_width.
std::int64_t max_tensor_size(const model::TransformerOptions& gpt) {
  return std::gcd(std::gcd(gpt.heads, gpt.kv_heads), gpt.mlp_width);
}

/// Requires that parallel.tensor divides the extents that it splits.
void check_tensor(const Deck& deck, Reader& reader) {
  if (any_wrong(reader, {"model.kind", "parallel.tensor", "model.heads", "model.kv_heads",
                         "model.mlp_width", "model.width"}))
    return;
  const std::int64_t tensor = deck.parallel.tensor;
  if (tensor == 1) return;
  if (deck.model.kind != ModelKind::gpt) {
    reader.add_mistake(
        "parallel.tensor",
        fmt::format("{} splits the layers of model.kind = \"gpt\" only, not those of "
                    "image models; use 1 and more data ranks",
                    tensor));
    return;
  }
  const model::TransformerOptions& gpt = deck.model.gpt;
  for (const auto& [key, extent] :
       {std::pair("model.heads", gpt.heads), std::pair("model.kv_heads", gpt.kv_heads),
        std::pair("model.mlp_width", gpt.mlp_width)}) {
    if (extent % tensor == 0) continue;
    reader.add_mistake("parallel.tensor",
                       fmt::format("{} does not divide {} = {}{} (each rank of a "
                                   "tensor group takes an equal part); use {}",
                                   tensor, key, extent, default_note(reader, key),
                                   nearest_divisors(tensor, max_tensor_size(gpt))));
    return;
  }
}

/// Requires that sequence parallelism has a tensor group whose size divides the rows.
void check_sequence(const Deck& deck, Reader& reader) {
  if (!deck.parallel.sequence ||
      any_wrong(reader, {"model.kind", "model.context", "parallel.sequence", "parallel.tensor",
                         "batch.micro"}))
    return;
  const std::int64_t tensor = deck.parallel.tensor, micro = deck.batch.micro,
                     context = deck.model.gpt.context;
  if (tensor == 1) {
    const std::int64_t sizes =
        deck.model.kind == ModelKind::gpt ? max_tensor_size(deck.model.gpt) : 1;
    std::int64_t tensor_size = 2;
    while (tensor_size < sizes && sizes % tensor_size != 0) ++tensor_size;
    reader.add_mistake("parallel.sequence",
                       fmt::format("true splits rows over the tensor group, but parallel.tensor = "
                                   "1{}; use sequence = false{}",
                                   default_note(reader, "parallel.tensor"),
                                   sizes > 1 ? fmt::format(", or tensor = {}", tensor_size) : ""));
  } else if (micro * context % tensor != 0) {
    reader.add_mistake(
        "parallel.sequence",
        fmt::format("true: batch.micro = {}{} x model.context = {}{} rows are not divisible "
                    "by parallel.tensor = {}; use batch.micro = {}, "
                    "or sequence = false",
                    micro, inner_default_note(reader, "batch.micro"), context,
                    inner_default_note(reader, "model.context"), tensor,
                    nearest_multiples(micro, tensor / std::gcd(tensor, context))));
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
                    parallel.pipeline, default_note(reader, "parallel.pipeline")));
  else if (interleaved && parallel.pipeline_chunks < 2)
    reader.add_mistake(
        "parallel.pipeline_schedule",
        fmt::format("\"interleaved\" needs two chunks a stage or more, but "
                    "parallel.pipeline_chunks = {}{}; use pipeline_chunks = 2, or \"1f1b\"",
                    parallel.pipeline_chunks, default_note(reader, "parallel.pipeline_chunks")));
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
                    default_note(reader, "parallel.sync")));
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
  if (deck.model.kind != ModelKind::gpt ||
      any_wrong(reader,
                {"model.kind", "model.width", "model.heads", "model.kv_heads", "model.positions"}))
    return;
  const model::TransformerOptions& gpt = deck.model.gpt;
  const char* key =
      reader.is_set("model.heads") || !reader.is_set("model.width") ? "model.heads" : "model.width";
  if (gpt.width % gpt.heads != 0)
    reader.add_mistake(
        key,
        fmt::format("model.width = {}{} is not a multiple of model.heads = {}{} (all heads "
                    "have the same width); use model.width = {}, or model.heads = {}",
                    gpt.width, inner_default_note(reader, "model.width"), gpt.heads,
                    default_note(reader, "model.heads"), nearest_multiples(gpt.width, gpt.heads),
                    nearest_divisors(gpt.heads, gpt.width)));
  else if (gpt.positions == model::PositionKind::rope && gpt.head_width() % 2 != 0)
    reader.add_mistake(
        key,
        fmt::format("positions = \"rope\" rotates pairs of numbers, but a head's "
                    "width is model.width / model.heads = {}, which is odd; use model.width = {}",
                    gpt.head_width(), nearest_multiples(gpt.width, 2 * gpt.heads)));
  if (gpt.heads % gpt.kv_heads != 0)
    reader.add_mistake("model.kv_heads",
                       fmt::format("{} does not divide model.heads = {}{} (each key and value head "
                                   "serves the same number of heads); use {}",
                                   gpt.kv_heads, gpt.heads, default_note(reader, "model.heads"),
                                   nearest_divisors(gpt.kv_heads, gpt.heads)));
}

void check_parallel(const Deck& deck, Reader& reader) {
  check_tensor(deck, reader);
  check_sequence(deck, reader);
  check_pipeline(deck, reader);
  check_sync(deck, reader);
  check_intervals(deck, reader);
  check_offload(deck, reader);
}

}  // namespace trireme::deck
