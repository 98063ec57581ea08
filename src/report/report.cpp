// SPDX-License-Identifier: Apache-2.0
#include "trireme/report/report.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/train/records/software_versions.hpp"

namespace trireme::report {

Report read_report(const std::vector<std::string>& paths) {
  validate(paths.size() <= max_runs, "{} runs: a report shows at most {}", paths.size(), max_runs);
  constexpr std::size_t all_buckets = 1536, most = 512, least = 64;
  const std::size_t buckets =
      std::clamp(all_buckets / std::max<std::size_t>(paths.size(), 1), least, most) / 2 * 2;
  Report report{
      .written = utc_timestamp(), .program = train::software_versions().program, .runs = {}};
  std::map<std::string, int> names;
  for (const std::string& path : paths) {
    report.runs.push_back(read_run(path, buckets));
    ++names[report.runs.back().name];
  }
  for (RunRecord& run : report.runs)
    if (names[run.name] > 1) run.name = run.path;
  return report;
}

}  // namespace trireme::report
