// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/report_line.hpp"
#include "app/resolved_run.hpp"
#include "trireme/plan/costs.hpp"
#include "trireme/plan/prediction.hpp"

namespace trireme::app {

/// The result of `plan`.
struct PlanReport {
  std::string path;  ///< of the deck
  const ResolvedRun& run;
  const plan::Machine& machine;
  train::ReplicaOptions options;  ///< Of the replica that is predicted.
  plan::Prediction prediction;
  std::vector<std::string> warnings;
  std::optional<ReportLine> simgrid = std::nullopt;  ///< A replay that was written.
};

/// Returns the costs from which the step of a report was simulated. They refer to its machine.
plan::StepCosts planned_costs(const PlanReport& report);

/// Returns what a deck's prediction leaves out, and the warnings of `check`.
std::vector<std::string> plan_warnings(const deck::Deck& deck);

/// Returns the end of a line with the cost in US dollars, or that no price is known.
std::string cost_text(std::optional<double> usd);

/// Prints the report as lines for people. `ops`: also a table of all ops.
void print_as_text(const PlanReport& report, bool ops);
/// Returns the report as one JSON object: a member for each line, with its text and its numbers,
/// and all places with their arenas, traffic and ops.
std::string plan_json(const PlanReport& report);

}  // namespace trireme::app
