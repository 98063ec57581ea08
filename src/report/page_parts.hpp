// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/report/report.hpp"

namespace trireme::report {

/// The largest lengths of lists on a page, for each run.
struct PageLimits {
  std::size_t hosts = 200, tensors = 120, classes = 30, points = 1000, deck_bytes = 20'000;
};

// The sections of a page, as HTML. An empty text: the runs have nothing of it.

std::string curves_html(const Report& report);
/// Returns whether a number of a track is drawn.
bool has_chart(std::string_view name);
std::string summary_html(const Report& report);
/// The keys that differ between the decks, with their value in each run.
std::string differences_html(const Report& report);
std::string steps_html(const Report& report);
std::string predictions_html(const Report& report);
std::string memory_html(const Report& report);
std::string accounts_html(const Report& report);
std::string classes_html(const Report& report, const PageLimits& limits);
std::string values_html(const Report& report, const PageLimits& limits);
std::string tensors_html(const Report& report, const PageLimits& limits);
std::string ranks_html(const Report& report, const PageLimits& limits);
std::string events_html(const Report& report);
std::string starts_html(const Report& report);
std::string decks_html(const Report& report, const PageLimits& limits);

/// Returns the name of a run in the color of its curves, if there are several.
std::string run_label(const Report& report, std::size_t run);
/// Returns the texts of all runs below each other, each with its name if there are several.
std::string for_each_run(const Report& report,
                         const std::function<std::string(const RunRecord&)>& text_of);
/// Returns a number of a run; none if it has none.
std::optional<double> latest_of(const RunRecord& run, const char* key);
/// Returns the index of a number in a track; none if it has none.
std::optional<std::size_t> index_of(const Track& track, std::string_view name);
/// Returns the classes of the color of a run: colors repeat with another dash pattern.
std::string color_of_run(std::size_t run);

/// Returns the data of the curves as JSON for the script, without any "<".
std::string curve_data(const Report& report);

}  // namespace trireme::report
