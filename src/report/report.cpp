// SPDX-License-Identifier: Apache-2.0
#include "trireme/report/report.hpp"

#include <filesystem>
#include <map>
#include <set>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/train/records/software_versions.hpp"

namespace trireme::report {

Report read_report(const std::vector<std::string>& paths) {
  validate(paths.size() <= max_runs, "{} runs: a report shows at most {}", paths.size(), max_runs);
  constexpr std::size_t max_buckets = 512;
  Report report{
      .written = utc_timestamp(), .program = train::software_versions().program, .runs = {}};
  std::map<std::string, int> names;
  std::set<std::filesystem::path> folders;
  for (const std::string& path : paths) {
    report.runs.push_back(read_run(path, max_buckets));
    validate(folders.insert(std::filesystem::canonical(path)).second,
             "{}: is given twice; give each run once", path);
    ++names[report.runs.back().name];
  }
  for (RunRecord& run : report.runs)
    if (names[run.name] > 1) run.name = printable(run.path);
  return report;
}

}  // namespace trireme::report
