// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "trireme/report/report.hpp"

namespace trireme::report {

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
std::string classes_html(const Report& report);
std::string tensors_html(const Report& report);
std::string ranks_html(const Report& report);
std::string events_html(const Report& report);
std::string starts_html(const Report& report);
std::string decks_html(const Report& report);

/// Returns the name of a run in the color of its curves, if there are several.
std::string run_label(const Report& report, std::size_t run);

/// Returns the data of the curves as JSON for the script, without any "<".
std::string curve_data(const Report& report);

}  // namespace trireme::report
