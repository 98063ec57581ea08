// SPDX-License-Identifier: Apache-2.0
//
// Declares the keys of the table [parallel], and the rules between them.
#include "trireme/parallel/keys.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/keys/reader.hpp"

namespace trireme::parallel {

using namespace keys;

namespace {

constexpr int max_ranks = 1 << 20;
// No model has more blocks to distribute or more heads to split.
constexpr double max_splits = 1024;

/// "none" (0), "all" (1) or "every n".
Field recompute(int& value) {
  const auto read = [&value](const Value& given) -> std::string {
    constexpr std::string_view every = "every ";
    constexpr const char* demand =
        "\"none\", \"all\" or \"every n\" (each n-th block), as in \"every 2\"";
    const auto string = given.text();
    if (!string) return given.wrong_type(demand);
    const int blocks = *string == "all" ? 1
                       : string->starts_with(every)
                           ? parse_count(std::string_view(*string).substr(every.size()))
                           : 0;
    if (blocks == 0 && *string != "none")
      return fmt::format("{}: must be {}", quoted(*string), demand);
    value = blocks;
    return "";
  };
  return {
      read,
      [&value] {
        return quoted(value == 0 ? "none" : value == 1 ? "all" : fmt::format("every {}", value));
      },
      "word", "\"none\", \"all\", \"every n\"; n at least 1"};
}

/// A list of the words "optimizer", "parameters", "activations".
Field offload(Offload& value) {
  static const std::vector<std::pair<std::string, bool Offload::*>> parts = {
      {"optimizer", &Offload::optimizer},
      {"parameters", &Offload::parameters},
      {"activations", &Offload::activations}};
  std::vector<std::string> all_names;
  for (const auto& part : parts) all_names.push_back(part.first);
  const auto read = [&value, names = all_names](const Value& given) -> std::string {
    const auto list = given.list();
    if (!list)
      return given.wrong_type(
          fmt::format("a list of {}, as in [\"optimizer\"]", quoted_list(names)));
    Offload read_value;
    for (const Value& node : *list) {
      const auto string = node.string();
      if (!string) return node.wrong_type(fmt::format("a list of {}", quoted_list(names)));
      const auto part = std::find_if(parts.begin(), parts.end(),
                                     [&](const auto& known) { return known.first == *string; });
      if (part == parts.end()) return unknown_choice(*string, names);
      read_value.*(part->second) = true;
    }
    value = read_value;
    return "";
  };
  return {read,
          [&value] {
            std::vector<std::string> given;
            for (const auto& [name, part] : parts)
              if (value.*part) given.push_back(quoted(name));
            return fmt::format("[{}]", fmt::join(given, ", "));
          },
          "list of words", quoted_list(all_names)};
}

/// "step", "delayed" or "every n steps".
Field sync(SyncKind& kind, int& every) {
  const auto read = [&kind, &every](const Value& given) -> std::string {
    constexpr std::string_view begin = "every ", end = " steps";
    constexpr const char* demand =
        "\"step\", \"delayed\" or \"every n steps\", as in \"every 8 steps\"";
    const auto string = given.text();
    if (!string) return given.wrong_type(demand);
    std::string_view number = *string;
    const bool periodic = number.size() > begin.size() + end.size() && number.starts_with(begin) &&
                          number.ends_with(end);
    if (periodic) number = number.substr(begin.size(), number.size() - begin.size() - end.size());
    const int steps = periodic ? parse_count(number) : 1;
    if (steps == 0 || (!periodic && number != "step" && number != "delayed"))
      return fmt::format("{}: must be {}", quoted(*string), demand);
    kind = *string == "delayed" ? SyncKind::delayed
           : steps > 1          ? SyncKind::periodic
                                : SyncKind::step;
    every = steps;
    return "";
  };
  return {read,
          [&kind, &every] {
            return quoted(kind == SyncKind::periodic  ? fmt::format("every {} steps", every)
                          : kind == SyncKind::delayed ? "delayed"
                                                      : "step");
          },
          "word", "\"step\", \"delayed\", \"every n steps\"; n at least 1"};
}

/// true (parallel::ParallelOptions::all_data_ranks), false (0) or an integer of the range.
Field rank_group(int& value, NumberRange range) {
  constexpr int all = ParallelOptions::all_data_ranks;
  const auto read = [&value, range](const Value& given) -> std::string {
    if (const auto flag = given.boolean()) {
      value = *flag ? all : 0;
      return "";
    }
    const auto integer = given.integer();
    if (!integer) return wrong_number("true, false or an integer", given, range);
    if (!range.contains(static_cast<double>(*integer)))
      return fmt::format("{} is out of range; must be true, false, or {} to {}", *integer,
                         range.min, range.max);
    value = static_cast<int>(*integer);
    return "";
  };
  return {read,
          [&value] {
            return value == all ? "true" : value == 0 ? "false" : fmt::format("{}", value);
          },
          "true, false or integer", range.requirement(range.min)};
}

}  // namespace

void visit_keys(Visitor& v, ParallelOptions& parallel) {
  v.table("parallel");
  v.field({"data", "Sets the number of data-parallel replicas; auto: ranks / (tensor * pipeline)."},
          automatic_integer(parallel.data, between(1, max_ranks)));
  v.field({"tensor",
           "Sets the number of ranks among which each layer of a gpt or vit is split (tensor "
           "parallelism)."},
          integer(parallel.tensor, between(1, max_splits)));
  v.field({"pipeline", "Sets the number of pipeline stages."},
          integer(parallel.pipeline, between(1, max_splits)));
  v.field({"pipeline_schedule",
           "Selects the order of micro-batches in the pipeline: gpipe, 1f1b or interleaved."},
          choice<PipelineKind>(parallel.pipeline_schedule,
                               {{"gpipe", PipelineKind::gpipe},
                                {"1f1b", PipelineKind::one_forward_one_backward},
                                {"interleaved", PipelineKind::interleaved}}));
  v.field({"pipeline_chunks",
           "Sets the number of model chunks per stage; interleaved needs 2 or more."},
          integer(parallel.pipeline_chunks, between(1, max_splits)));
  v.field({"shard",
           "Selects the state that replicas partition: none, optimizer (ZeRO-1), gradients "
           "(ZeRO-2) or parameters (ZeRO-3)."},
          choice<ShardKind>(parallel.shard, {{"none", ShardKind::none},
                                             {"optimizer", ShardKind::optimizer},
                                             {"gradients", ShardKind::gradients},
                                             {"parameters", ShardKind::parameters}}));
  v.field({"sequence",
           "Also splits activations between tensor-parallel regions by rows (sequence "
           "parallelism); needs tensor > 1."},
          flag(parallel.sequence));
  v.field({"recompute",
           "Selects the blocks whose activations are recomputed in backward: none, all or \"every "
           "n\"."},
          recompute(parallel.recompute));
  v.field({"offload",
           "Lists the state that is kept in host memory: \"optimizer\", \"parameters\", "
           "\"activations\"."},
          offload(parallel.offload));
  v.field({"sync",
           "Selects when replicas synchronize: step, delayed (one step later) or \"every n steps\" "
           "(local SGD)."},
          sync(parallel.sync, parallel.sync_every));
  v.field({"outer_momentum",
           "Sets the momentum of the averaged update of sync = \"every n steps\", from 0 to below "
           "1; 0: plain average."},
          real(parallel.outer_momentum, half_open(0, 1)));
  v.field({"bucket_mb", "Sets the size of a gradient bucket, which is reduced as a unit, in MiB."},
          real(parallel.bucket_mb, {.min = 0, .max = 1e6, .min_open = true}));
  v.field({"sync_batch_norm",
           "Computes batch norm over groups of k neighboring data ranks; true: over all of them, "
           "false: on each rank by itself."},
          rank_group(parallel.sync_batch_norm, between(2, max_ranks)));
}

namespace {

/// Requires settings of parallel.sync that replicas with different weights can follow.
void check_sync(const ParallelOptions& parallel, Reader& reader) {
  if (reader.any_wrong({"parallel.sync", "parallel.shard", "parallel.outer_momentum"})) return;
  const bool periodic = parallel.sync == SyncKind::periodic;
  if (periodic && parallel.shard != ShardKind::none)
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
                    parallel.sync == SyncKind::delayed ? "delayed" : "step",
                    reader.notes()("parallel.sync")));
}

/// Requires sharded parameters if parameters are offloaded.
void check_offload(const ParallelOptions& parallel, Reader& reader) {
  if (reader.any_wrong({"parallel.offload", "parallel.shard"})) return;
  if (parallel.offload.parameters && parallel.shard != ShardKind::parameters)
    reader.add_mistake("parallel.offload",
                       fmt::format("\"parameters\" are loaded block by block, as with shard = "
                                   "\"parameters\"; use that (on one rank too), or leave "
                                   "\"parameters\" out"));
}

}  // namespace

void check_keys(const ParallelOptions& options, Reader& reader) {
  check_sync(options, reader);
  check_offload(options, reader);
}

void check_pipeline_keys(const ParallelOptions& parallel, Reader& reader) {
  if (reader.any_wrong(
          {"parallel.pipeline", "parallel.pipeline_schedule", "parallel.pipeline_chunks"}))
    return;
  const bool interleaved = parallel.pipeline_schedule == PipelineKind::interleaved;
  if (interleaved && parallel.pipeline < 2)
    reader.add_mistake(
        "parallel.pipeline_schedule",
        fmt::format("\"interleaved\" needs two stages or more, but parallel.pipeline = "
                    "{}{}; use pipeline = 2, or \"1f1b\" with pipeline_chunks = 1",
                    parallel.pipeline, reader.notes()("parallel.pipeline")));
  else if (interleaved && parallel.pipeline_chunks < 2)
    reader.add_mistake(
        "parallel.pipeline_schedule",
        fmt::format("\"interleaved\" needs two chunks a stage or more, but "
                    "parallel.pipeline_chunks = {}{}; use pipeline_chunks = 2, or \"1f1b\"",
                    parallel.pipeline_chunks, reader.notes()("parallel.pipeline_chunks")));
  else if (!interleaved && parallel.pipeline_chunks > 1)
    reader.add_mistake(
        "parallel.pipeline_chunks",
        fmt::format("{} chunks a stage need pipeline_schedule = \"interleaved\"; use "
                    "that, or pipeline_chunks = 1",
                    parallel.pipeline_chunks));
}

}  // namespace trireme::parallel
