// SPDX-License-Identifier: Apache-2.0
//
// `trireme doctor`: examines the machine, prints the findings, exits with 1 if one is a problem.
//
// doctor_facts.cpp gathers facts from all ranks, doctor_findings.cpp makes findings of them.
#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "app/deck_source.hpp"
#include "doctor_findings.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/environment.hpp"

namespace trireme::app {
namespace {

using Status = Finding::Status;

std::int64_t count(const std::vector<Finding>& findings, Status status) {
  return std::count_if(findings.begin(), findings.end(),
                       [status](const Finding& finding) { return finding.status == status; });
}

void print_as_text(const std::vector<Finding>& findings, std::size_t nodes) {
  for (const Finding& finding : findings) {
    std::string text = printable_lines(finding.found);
    if (!finding.nodes.empty() && finding.subject != "differences")
      text += " (" + list_of(finding.nodes) + ")";
    if (!finding.hurts.empty())
      text += fmt::format(". Hurts: {}. Remedy: {}", printable_lines(finding.hurts),
                          printable_lines(finding.remedy));
    fmt::print("{:<8} {:<14} {}\n", to_string(finding.status), finding.subject, text);
  }
  fmt::print("doctor: {}, {} on {}\n",
             counted(count(findings, Status::problem), "problem", "problems"),
             counted(count(findings, Status::warning), "warning", "warnings"),
             counted(static_cast<std::int64_t>(nodes), "node", "nodes"));
}

void print_as_json(const std::vector<Finding>& findings, const MachineFacts& facts) {
  using Json = nlohmann::ordered_json;
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json() : Json(text);
  };
  Json list = Json::array();
  for (const Finding& finding : findings)
    list.push_back({{"status", to_string(finding.status)},
                    {"subject", finding.subject},
                    {"found", finding.found},
                    {"hurts", text_or_null(finding.hurts)},
                    {"remedy", text_or_null(finding.remedy)},
                    {"nodes", finding.nodes}});
  const Json json{{"problems", count(findings, Status::problem)},
                  {"warnings", count(findings, Status::warning)},
                  {"findings", list},
                  {"facts", Json::parse(to_json(facts))}};
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

ExitCode doctor(const comm::Environment& environment, const DoctorOptions& options) {
  // Processes that MPI does not connect each have a world of one. The first of them speaks for all.
  const bool is_apart = environment.world().size() < environment.launched_processes();
  if (is_apart && comm::launched_rank() != 0) return ExitCode::failure;
  const MachineFacts facts = examine_machine(environment, options);
  std::int64_t problems = 0;
  if (environment.world().rank() == 0) {
    const std::vector<Finding> findings = find(facts);
    problems = count(findings, Status::problem);
    options.json ? print_as_json(findings, facts) : print_as_text(findings, facts.nodes.size());
  }
  problems = environment.world().all_reduce(problems, comm::Reduction::max);
  return problems > 0 ? ExitCode::failure : ExitCode::done;
}

ExitCode doctor_command(const DoctorOptions& options) {
  constexpr std::uint64_t max_bytes = std::uint64_t{64} << 30;
  validate(options.bytes <= max_bytes, "--bytes {}: must be at most 64GiB, for each node writes it",
           options.bytes);
  comm::Environment environment(comm::Disconnected::allowed);
  Log log(environment.world().rank() == 0);
  run_and_exit(environment, log, [&] { return doctor(environment, options); });
}

}  // namespace

void add_doctor(CommandLine& line) {
  Command command = line.add("doctor",
                             "Examine this machine before a run: launcher, cores, GPUs, limits, "
                             "the folder of the run, time left; exit 1 if a problem is found");
  const auto options = std::make_shared<DoctorOptions>();
  command
      .option("--folder", options->folder,
              "A folder on the file system of the run; small files are written there and removed")
      .type_name("FOLDER")
      .default_shown();
  command
      .option("--bytes", options->bytes,
              "Bytes that each node writes and reads there (default: 64MiB); 0: no test of speed")
      .size_in_bytes();
  command.flag("--json", options->json, "Findings and facts as one JSON object");
  command.footer(
      "Examples:\n  trireme doctor --folder /scratch/me\n"
      "  srun trireme doctor                # in a job: examines every node");
  command.set_action([options] { return doctor_command(*options); });
}

}  // namespace trireme::app
