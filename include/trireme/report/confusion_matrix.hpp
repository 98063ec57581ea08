// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/train/scores/class_scores.hpp"

namespace trireme::report {

/// The scores and counts of a confusion matrix, from a file of `evaluate --confusion`.
struct ConfusionMatrix {
  std::string file;                  ///< its name in the run folder
  std::vector<std::string> classes;  ///< printable and short
  std::vector<train::ClassScore> scores;
  /// The pairs that were confused most often, at most 20.
  std::vector<train::ConfusedPair> pairs;
  train::Confusion counts;  ///< of a matrix of at most max_drawn_classes
};
inline constexpr std::size_t max_drawn_classes = 30;

/// The first bytes of such a file.
inline constexpr std::string_view confusion_csv_start = "true\\predicted,";

/// Parses the CSV text of a file with this path. Throws InputError for a text of another form, and
/// for more than 4096 classes.
ConfusionMatrix parse_confusion(std::string_view text, const std::string& path);

}  // namespace trireme::report
