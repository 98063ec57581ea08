// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "app/commands.hpp"
#include "plan_report.hpp"
#include "plan_search_report.hpp"

namespace trireme::app {

/// The files of --timeline and --memory-plot; empty: no picture.
struct PlanPictures {
  std::string timeline, memory;
  bool any() const { return !timeline.empty() || !memory.empty(); }
};

void add_picture_options(Command& command, PlanPictures& pictures);
/// Throws InputError unless the pictures may be written to their files.
void validate_pictures(const PlanPictures& pictures);
/// Writes the pictures, and prints a line for each one unless `is_quiet`.
void write_pictures(const PlanPictures& pictures, const PlanReport& report, bool is_quiet);
void write_pictures(const PlanPictures& pictures, const SearchReport& report, bool is_quiet);

/// Returns the simulated step as an SVG picture: for each stage a bar of its actions, and thin ones
/// of its requests, by group.
std::string draw_timeline(const PlanReport& report);

/// Returns stacks of the arenas of the places of a layout as an SVG picture.
std::string draw_memory(const PlanReport& report);
/// Returns stacks of the arenas of the largest rank of each found layout as an SVG picture.
std::string draw_memory(const SearchReport& report);

}  // namespace trireme::app
