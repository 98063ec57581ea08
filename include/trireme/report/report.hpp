// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trireme/report/run_record.hpp"

namespace trireme::report {

inline constexpr std::size_t max_runs = 24;
inline constexpr std::size_t max_page_bytes = 2'000'000;

/// Runs beside each other. The differences are those from the first one.
struct Report {
  std::string written;  ///< UTC time
  std::string program;  ///< its version
  std::vector<RunRecord> runs;
};

/// Reads run folders, at most max_runs, with names that differ. Throws as read_run() does, and
/// InputError for a folder that is given twice.
Report read_report(const std::vector<std::string>& paths);

/// Returns all figures of a report. Numbers of curves have six digits.
nlohmann::ordered_json to_json(const Report& report);

/// The first bytes of a page.
inline constexpr std::string_view page_start = "<!DOCTYPE html>\n<!-- trireme report -->\n";

/// Returns the report as one HTML page, which needs no other file and no network. Every text of the
/// runs is escaped. Curves and lists are shortened until it has max_page_bytes. The same report
/// always gives the same bytes.
std::string to_page(Report report);

}  // namespace trireme::report
