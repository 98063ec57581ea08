// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "trireme/train/scores/class_scores.hpp"

namespace trireme::app {

/// Throws InputError unless `path` ends in .csv or .svg, and may be written: it does not exist, or
/// is a confusion matrix of this program.
void validate_confusion_file(const std::string& path);

/// Writes the matrix in the form that the name of the file asks for. `title`: of the picture.
/// Throws InputError or Failure.
void write_confusion(const std::string& path, const std::string& title,
                     const train::Confusion& confusion, const std::vector<std::string>& names);

/// Returns the matrix as CSV: a line for each true class, a column for each predicted class. The
/// first line and the first column are the names.
std::string confusion_csv(const train::Confusion& confusion, const std::vector<std::string>& names);

/// Returns a picture of the matrix. Of more than 100 classes it shows the 30 pairs that were
/// confused most often.
std::string confusion_svg(const std::string& title, const train::Confusion& confusion,
                          const std::vector<std::string>& names);

}  // namespace trireme::app
