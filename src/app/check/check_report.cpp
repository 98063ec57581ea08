// SPDX-License-Identifier: Apache-2.0
//
// The output of `trireme check DECK`: one line for each subject, or one JSON object.
//
// describe() makes a ReportLine for each subject; both forms of output are made from the lines.
#include "check_report.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "app/report_line.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/model/family.hpp"
#include "trireme/optim/schedule.hpp"
#include "trireme/train/records/describe.hpp"

namespace trireme::app {
namespace {

using Json = nlohmann::ordered_json;

using Line = ReportLine;

std::string steps_text(std::int64_t steps) { return counted(steps, "step", "steps"); }

Line model_line(const CheckReport& report) {
  return {"model",
          fmt::format("{}: {} in {}", model::family_of(report.model).describe(report.model),
                      counted(report.weights, "weight", "weights"),
                      counted(report.blocks, "block", "blocks")),
          {{"kind", model::family_of(report.model).word},
           {"weights", report.weights},
           {"blocks", report.blocks}}};
}

/// Returns a dataset under the names of `inspect --json`.
Json dataset_json(const data::DatasetInfo& info, const Answer& answer) {
  Json json{{"holds", data::to_string(info.kind)}, {"samples", info.samples}};
  if (info.kind == data::DatasetKind::tokens) {
    json["context"] = info.context;
    json["tokens"] = info.tokens;
    json["vocabulary"] = info.vocabulary;
  } else {
    json["shape"] = {info.height, info.width, info.channels};
    json[fmt::format("{}_count", answer.part)] = info.target.count;
    if (answer.is_map) json["map"] = {info.target.height, info.target.width};
  }
  return json;
}

Line data_line(const CheckReport& report) {
  const Datasets& sets = report.sets;
  const Answer& answer = deck::answer_of(report.deck);
  std::string text =
      report.deck.data.samples == 0
          ? fmt::format("{} training", sets.train.samples)
          : fmt::format("{} of {} training", report.layout.samples, sets.train.samples);
  Json numbers{{"train", dataset_json(sets.train, answer)}};
  if (sets.validation) {
    text += fmt::format(", {} validation", sets.validation->samples);
    numbers["validation"] = dataset_json(*sets.validation, answer);
  }
  if (sets.test) {
    text += fmt::format(", {} test", sets.test->samples);
    numbers["test"] = dataset_json(*sets.test, answer);
  }
  text += sets.train.kind == data::DatasetKind::tokens
              ? fmt::format(" sequences of {}, vocabulary {}",
                            counted(sets.train.context, "token", "tokens"), sets.train.vocabulary)
              : fmt::format(" images of {} x {} x {}{}, {}", sets.train.height, sets.train.width,
                            sets.train.channels,
                            sets.train.pixel_type == DType::uint8
                                ? ""
                                : fmt::format(" ({})", to_string(sets.train.pixel_type)),
                            data::outputs_in_words(sets.train.target, answer));
  return {"data", text, numbers};
}

Line ramp_line(const CheckReport& report) {
  Json rows = Json::array();
  for (const train::ResolvedLayout& row : report.rows)
    rows.push_back({{"first_step", row.row_begin + 1},
                    {"samples", row.global},
                    {"micro_batches", row.accumulation}});
  return {"ramp", train::describe_ramp(report.layout), {{"rows", rows}}};
}

Line epoch_line(const CheckReport& report) {
  const train::ResolvedLayout& layout = report.layout;
  const std::int64_t rest = layout.samples - layout.samples_per_epoch;
  std::string text = fmt::format("{}, {}", counted(layout.samples_per_epoch, "sample", "samples"),
                                 steps_text(layout.steps_per_epoch));
  const bool has_ramp = !layout.scale.rows.empty();
  if (has_ramp) text = counted(layout.samples_per_epoch, "sample", "samples");
  if (rest > 0) text += fmt::format(" ({} left out)", counted(rest, "sample", "samples"));
  return {"epoch",
          text,
          {{"samples", layout.samples_per_epoch},
           {"steps", has_ramp ? Json() : Json(layout.steps_per_epoch)},
           {"samples_left_out", rest}}};
}

Line stop_line(const CheckReport& report) {
  const std::int64_t steps = report.layout.total_steps;
  std::string text = to_string(report.deck.run.stop);
  if (steps > 0 && report.deck.run.stop.unit != Duration::Unit::steps)
    text += " = " + steps_text(steps);
  return {"stop", text, {{"steps", steps > 0 ? Json(steps) : Json()}}};
}

Line rate_line(const CheckReport& report) {
  const deck::Deck& deck = report.deck;
  const train::ResolvedLayout& layout = report.layout;
  const optim::Schedule schedule(deck.schedule, deck.batch.global, layout.schedule_steps,
                                 layout.scale);
  // A plateau's rate follows from evaluations; a run that is limited by time has no last step.
  const bool has_last =
      layout.last_step() > 0 && deck.schedule.kind != optim::ScheduleKind::plateau;
  std::string text = fmt::format("peak {:.6g}", schedule.peak());
  Json numbers{
      {"peak", schedule.peak()}, {"warmup_steps", schedule.warmup_steps()}, {"last", Json()}};
  if (deck.schedule.warmup) text += ", warm-up over " + steps_text(schedule.warmup_steps());
  if (has_last) {
    const double last = schedule.rate(layout.last_step());
    numbers["last"] = last;
    text += fmt::format(", last step {:.3g}", last);
  }
  return {"rate", text, numbers};
}

Line noise_line(const CheckReport& report) {
  const train::NoiseAdvice advice = train::noise_advice(*report.noise, report.deck, report.layout);
  return {"noise",
          advice.text + (advice.ramp.empty() ? "" : "; a ramp: " + advice.ramp),
          {{"samples", report.noise->samples},
           {"low", report.noise->low},
           {"high", report.noise->high},
           {"batch", advice.batch},
           {"other_batch", advice.other},
           {"epochs_ratio", advice.epochs},
           {"ramp", advice.ramp.empty() ? Json() : Json(advice.ramp)}}};
}

Line memory_line(const CheckReport& report) {
  const train::MemoryPlan& plan = report.memory;
  return {"memory",
          (report.layout.ranks() > 1 ? "a rank needs about " : "") + train::describe_memory(plan),
          {{"bytes", plan.total()},
           {"host_bytes", plan.host_total() - plan.host_checkpoint},
           {"checkpoint_bytes", plan.host_checkpoint}}};
}

/// Returns the shape that a block gives of one sample; the last one gives the logits.
Shape sample_output(const CheckReport& report, const model::BlockWork& block) {
  const Shape& output = block.output;
  const data::DatasetInfo& train = report.sets.train;
  switch (output.rank()) {
    case 0:
      if (train.target.height == 0) return {train.target.count};
      return {train.target.height, train.target.width, train.target.count};
    case 2: return {output[1]};
    case 3: return {output[1], output[2]};
    default: return {output[1], output[2], output[3]};
  }
}

/// Prints the blocks as a table, with numbers of one sample.
void print_blocks(const CheckReport& report) {
  std::vector<std::array<std::string, 6>> rows{
      {"block", "layers", "output", "weights", "forward FLOPs", "activation bytes"}};
  const std::int64_t micro = report.deck.batch.micro;
  for (const model::BlockWork& block : report.block_works)
    rows.push_back({block.name, block.contents, to_string(sample_output(report, block)),
                    std::to_string(block.weights),
                    fmt::format("{:.4g}", block.forward_flops / static_cast<double>(micro)),
                    std::to_string(block.activation_bytes / micro)});
  std::array<std::size_t, 6> widths{};
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& [name, layers, output, weights, flops, bytes] : rows)
    fmt::print("        {:<{}}  {:<{}}  {:<{}}  {:>{}}  {:>{}}  {:>{}}\n", name, widths[0], layers,
               widths[1], output, widths[2], weights, widths[3], flops, widths[4], bytes,
               widths[5]);
}

Json blocks_json(const CheckReport& report) {
  Json rows = Json::array();
  const std::int64_t micro = report.deck.batch.micro;
  for (const model::BlockWork& block : report.block_works) {
    const Shape shape = sample_output(report, block);
    Json output = Json::array();
    for (int i = 0; i < shape.rank(); ++i) output.push_back(shape[i]);
    rows.push_back({{"name", block.name},
                    {"layers", block.contents},
                    {"output", output},
                    {"weights", block.weights},
                    {"forward_flops", block.forward_flops / static_cast<double>(micro)},
                    {"activation_bytes", block.activation_bytes / micro}});
  }
  return rows;
}

std::vector<Line> describe(const CheckReport& report) {
  const deck::Deck& deck = report.deck;
  const train::ResolvedLayout& layout = report.layout;
  std::vector<Line> lines;
  if (!report.assumed.empty()) {
    std::vector<std::string> sets;
    for (const auto& [split, form] : report.assumed)
      sets.push_back(fmt::format("{}={}", split, form));
    lines.push_back({"assumed", fmt::format("{}", fmt::join(sets, "; ")), {}});
  }
  lines.push_back({"run",
                   fmt::format("{} in {}", deck.run.name, deck.run.folder),
                   {{"name", deck.run.name}, {"folder", deck.run.folder}}});
  lines.push_back(model_line(report));
  lines.push_back(data_line(report));
  lines.push_back({"layout",
                   train::describe_layout(deck.parallel, layout),
                   {{"ranks", layout.ranks()},
                    {"data", layout.data},
                    {"tensor", layout.tensor},
                    {"pipeline", layout.pipeline}}});
  lines.push_back({"step",
                   train::describe_step(deck.batch.micro, layout),
                   {{"samples", layout.global},
                    {"micro_batches", layout.accumulation},
                    {"micro", deck.batch.micro}}});
  if (!layout.scale.rows.empty()) lines.push_back(ramp_line(report));
  lines.push_back(epoch_line(report));
  lines.push_back(stop_line(report));
  lines.push_back(rate_line(report));
  if (layout.pipeline > 1)
    lines.push_back({"stages",
                     train::describe_pipeline(deck.parallel, layout),
                     {{"stages", layout.pipeline}, {"chunks", deck.parallel.pipeline_chunks}}});
  if (layout.batch_norm_ranks > 1)
    lines.push_back(
        {"norm",
         train::describe_batch_norm(deck.batch, layout, report.batch_norm_bytes),
         {{"ranks", layout.batch_norm_ranks}, {"bytes_per_step", report.batch_norm_bytes}}});
  const bool is_tree = report.sum_order.order == comm::SumOrder::tree;
  lines.push_back({"sums",
                   train::describe_sum_order(report.sum_order),
                   {{"order", is_tree ? "tree" : "library"}}});
  lines.push_back(memory_line(report));
  if (report.noise) lines.push_back(noise_line(report));
  if (!report.not_checked.empty())
    lines.push_back(
        {"files", fmt::format("not checked: {}", fmt::join(report.not_checked, "; ")), {}});
  return lines;
}

}  // namespace

void print_as_text(const CheckReport& report) {
  for (const Line& line : describe(report)) {
    fmt::print("{:<8}{}\n", line.name, printable_lines(line.text));
    if (line.name == "model" && !report.block_works.empty()) print_blocks(report);
  }
  for (const std::string& note : report.notes) fmt::print("note    {}\n", printable_lines(note));
  for (const std::string& warning : report.warnings) fmt::print("warning {}\n", warning);
  fmt::print("{}: nothing is wrong{}\n", report.path,
             report.assumed.empty() ? "" : ", as far as it can be checked without the files");
  if (report.statistics) fmt::print("{}", to_text(*report.statistics));
}

void print_as_json(const CheckReport& report) {
  Json json{{"deck", report.path}, {"assumed", Json::object()}};
  for (const auto& [split, form] : report.assumed) json["assumed"][split] = form;
  json["not_checked"] = report.not_checked;
  json["notes"] = report.notes;
  json["warnings"] = report.warnings;
  for (Line& line : describe(report)) {
    if (line.numbers.empty()) continue;  // `assumed` and `files` are members of their own
    json[line.name] = {{"text", line.text}};
    json[line.name].update(line.numbers);
  }
  if (!report.block_works.empty()) json["blocks"] = blocks_json(report);
  if (report.statistics)
    json["statistics"] = {{"samples", report.statistics->samples},
                          {"mean", report.statistics->mean},
                          {"std", report.statistics->std},
                          {"target_mean", report.statistics->target_mean},
                          {"target_std", report.statistics->target_std}};
  json["ops"] = Json::array();
  for (const OpCount& work : report.ops)
    json["ops"].push_back(
        {{"op", work.op}, {"calls", work.calls}, {"flops", work.flops}, {"bytes", work.bytes}});
  fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace trireme::app
