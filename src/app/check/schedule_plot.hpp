// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/deck/deck.hpp"
#include "trireme/train/layout.hpp"

namespace trireme::app {

/// Writes an SVG file of the learning rate over the run, and of the momentum if it changes. Returns
/// a line that describes it.
///
/// Throws InputError if the run has no length (run.stop is a time and schedule.length is missing),
/// or if the path is wrong; Failure if the disk fails.
std::string draw_schedule(const deck::Deck& deck, const train::ResolvedLayout& layout,
                          const std::string& path);

}  // namespace trireme::app
