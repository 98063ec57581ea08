// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/train/scores/class_scores.hpp"

namespace trireme::report {

/// A confusion matrix from a file of `evaluate --confusion`.
struct ConfusionMatrix {
  std::string file;  ///< its name in the run folder
  std::vector<std::string> classes;
  train::Confusion counts;
};

/// The first bytes of such a file.
inline constexpr std::string_view confusion_csv_start = "true\\predicted,";

/// Parses the CSV text. Throws InputError for a text of another form, and for more than 4096
/// classes.
ConfusionMatrix parse_confusion(std::string_view text, const std::string& file);

}  // namespace trireme::report
