// SPDX-License-Identifier: Apache-2.0
//
// `trireme report`: one HTML page, or JSON, with the curves and figures of one or several runs.
//
// Reads the run folders and writes nothing into them, so it cannot disturb a run that goes on. Runs
// on one process.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "app/output_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/report/report.hpp"

namespace trireme::app {
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string out;
  bool json = false;
};

ExitCode report_command(const ReportOptions& options) {
  validate(options.json != !options.out.empty(),
           "give either --out FILE.html, for a page, or --json; as in trireme report {} --out "
           "report.html",
           printable(options.runs.front()));
  validate(options.out.empty() || options.out.ends_with(".html"),
           "--out {}: must end in .html, so that no file of a run is meant",
           printable(options.out));
  if (!options.out.empty()) validate_output("--out", options.out, OutputForm::report);
  report::Report report = report::read_report(options.runs);
  if (options.json) {
    // In ASCII: a terminal must not act on names and texts of files.
    write_output("-", report::to_json(report).dump(
                          -1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) +
                          "\n");
    return ExitCode::done;
  }
  const std::string runs = counted(std::ssize(report.runs), "run", "runs"),
                    page = report::to_page(std::move(report));
  write_output(options.out, page);
  fmt::print("{}: {}, {}\n", printable(options.out), runs, format_bytes(page.size()));
  return ExitCode::done;
}

}  // namespace

void add_report(CommandLine& line) {
  Command command = line.add("report", "Write curves and figures of runs as one HTML page");
  const auto options = std::make_shared<ReportOptions>();
  command.option("RUN", options->runs, "The folders of one or several runs").required();
  command.option("--out", options->out, "The page; one that report wrote is replaced");
  command.flag("--json", options->json, "Print the figures as JSON instead");
  command.footer("Example:\n  trireme report runs/fashion --out fashion.html");
  command.set_single_rank_action([options] { return report_command(*options); });
}

}  // namespace trireme::app
