// SPDX-License-Identifier: Apache-2.0
//
// The output of `trireme plan --prove`: what was recorded, what matches, and the result.
#include "proof_report.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "app/output_file.hpp"
#include "app/report_line.hpp"
#include "plan_report.hpp"
#include "trireme/base/text.hpp"
#include "trireme/plan/proof/proof.hpp"
#include "trireme/train/records/describe.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::app {
namespace {

using Json = nlohmann::ordered_json;
using Line = ReportLine;

// One mistake of the program is made by many ranks; the first findings show it.
constexpr std::size_t max_findings = 10;

/// Returns the micro-batches of an evaluation that are rehearsed on each data rank. Those beyond a
/// full group of unread sums repeat it.
std::int64_t evaluation_rounds(const ResolvedRun& run, const train::ResolvedLayout& layout) {
  if (!run.sets.validation) return 0;
  const std::int64_t samples = run.deck.evaluate.subset > 0 ? run.deck.evaluate.subset
                                                            : run.sets.validation->samples,
                     of_a_round = run.deck.batch.micro * layout.data;
  return std::min<std::int64_t>((samples + of_a_round - 1) / of_a_round,
                                train::PipelineStage::max_unread_micro_batches + 1);
}

/// The proof of one row of batch.ramp, or of the whole run.
struct RowProof {
  train::ResolvedLayout layout;
  std::int64_t recorded_ranks = 0, rounds = 0;
  plan::Proof proof;
};

RowProof prove_row(const ResolvedRun& run, const train::ResolvedLayout& layout) {
  const train::ReplicaOptions options =
      train::make_replica_options(run.deck, run.sets.train, layout);
  RowProof row{
      .layout = layout, .recorded_ranks = 0, .rounds = evaluation_rounds(run, layout), .proof = {}};
  const plan::RankPrograms programs =
      plan::record_programs(options, layout.mesh_shape(), run.device,
                            {.evaluation_rounds = row.rounds,
                             .compares_replicas = run.deck.health.compare_replicas.has_value()});
  row.recorded_ranks = programs.recorded_ranks;
  row.proof = plan::prove(programs);
  return row;
}

Line record_line(const RowProof& row) {
  const plan::Proof& proof = row.proof;
  return {
      "record",
      fmt::format("{} for all {} of the run; {}, {} calls in all",
                  counted(row.recorded_ranks, "rank", "ranks"), proof.ranks,
                  counted(proof.programs, "different program", "different programs"), proof.calls),
      {{"ranks", proof.ranks},
       {"recorded_ranks", row.recorded_ranks},
       {"programs", proof.programs},
       {"calls", proof.calls}}};
}

Line parts_line(const RowProof& row) {
  const std::string evaluation =
      row.rounds > 0 ? fmt::format(", an evaluation ({} a rank)",
                                   counted(row.rounds, "micro-batch", "micro-batches"))
                     : "";
  return {"parts",
          fmt::format("three steps{}, the begin of two checkpoints, a stop", evaluation),
          {{"evaluation_rounds", row.rounds}}};
}

std::vector<Line> describe(const ResolvedRun& run, const RowProof& row) {
  std::vector<Line> lines{{"layout",
                           train::describe_layout(run.deck.parallel, row.layout),
                           {{"ranks", row.layout.ranks()},
                            {"data", row.layout.data},
                            {"tensor", row.layout.tensor},
                            {"pipeline", row.layout.pipeline}}},
                          parts_line(row),
                          record_line(row)};
  const plan::Proof& proof = row.proof;
  if (proof.holds()) {
    lines.push_back({"messages",
                     proof.messages == 0 ? "none"
                                         : fmt::format("{}, each with its receive",
                                                       counted(proof.messages, "send", "sends")),
                     {{"sends", proof.messages}}});
    std::string text;
    Json groups = Json::array();
    for (const plan::Proof::Group& group : proof.groups) {
      if (!text.empty()) text += '\n';
      text += fmt::format("{}: {} of {}, {} in the same order on all their ranks", group.name,
                          counted(group.groups, "group", "groups"),
                          counted(group.ranks, "rank", "ranks"),
                          counted(group.collectives, "collective", "collectives"));
      groups.push_back({{"group", group.name},
                        {"groups", group.groups},
                        {"ranks", group.ranks},
                        {"collectives", group.collectives}});
    }
    if (!groups.empty()) lines.push_back({"groups", text, {{"kinds", groups}}});
    lines.push_back({"simulated",
                     fmt::format("{}, each for all ranks that do the same; every one ends",
                                 counted(proof.classes, "rank", "ranks")),
                     {{"ranks", proof.classes}}});
  }
  Json findings = Json::array();
  for (const plan::Proof::Finding& finding : proof.findings)
    findings.push_back({{"rank", finding.rank}, {"text", finding.text}});
  lines.push_back({"result",
                   proof.holds()
                       ? "free of deadlock"
                       : fmt::format("this run would hang or fail: {}",
                                     counted(std::ssize(proof.findings), "finding", "findings")),
                   {{"free_of_deadlock", proof.holds()}, {"findings", findings}}});
  return lines;
}

/// Returns the text with its second and later lines indented to the column of the first.
std::string aligned(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c;
    if (c == '\n') result += std::string(11, ' ');
  }
  return result;
}

void print_as_text(const ResolvedRun& run, const RowProof& row) {
  for (const Line& line : describe(run, row))
    fmt::print("{:<11}{}\n", line.name, aligned(line.text));
  const auto& findings = row.proof.findings;
  for (std::size_t i = 0; i < std::min(findings.size(), max_findings); ++i)
    fmt::print("finding    {}\n", aligned(findings[i].text));
  if (findings.size() > max_findings)
    fmt::print("           and {} more\n", findings.size() - max_findings);
}

std::string proof_json(const std::string& path, const ResolvedRun& run,
                       const std::vector<RowProof>& rows) {
  Json json{{"deck", path}, {"assumed", Json::object()}, {"rows", Json::array()}};
  for (const auto& [split, form] : run.assumed) json["assumed"][split] = form;
  for (const RowProof& row : rows) {
    Json& entry = json["rows"].emplace_back(Json::object());
    for (Line& line : describe(run, row)) {
      entry[line.name] = {{"text", line.text}};
      entry[line.name].update(line.numbers);
    }
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

ExitCode prove_run(const std::string& path, const ResolvedRun& run, const std::string& json) {
  std::vector<RowProof> rows;
  for (const train::ResolvedLayout& layout : run.rows) {
    rows.push_back(prove_row(run, layout));
    if (!json.empty()) continue;
    if (run.rows.size() > 1)
      fmt::print("{}row        of batch.ramp, from step {}\n", rows.size() > 1 ? "\n" : "",
                 layout.row_begin + 1);
    print_as_text(run, rows.back());
  }
  if (!json.empty()) write_output(json, proof_json(path, run, rows));
  const bool holds =
      std::all_of(rows.begin(), rows.end(), [](const RowProof& row) { return row.proof.holds(); });
  return holds ? ExitCode::done : ExitCode::failure;
}

}  // namespace trireme::app
