// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trireme/train/scores/class_scores.hpp"

namespace trireme::app {

/// Returns a table of the classes for people, those that fail most at the top.
std::string class_table(std::span<const train::ClassScore> scores,
                        const std::vector<std::string>& names);

/// Returns one object for each class, in the order of the classes. Scores that are not defined are
/// null.
nlohmann::ordered_json class_json(std::span<const train::ClassScore> scores,
                                  const std::vector<std::string>& names);

}  // namespace trireme::app
