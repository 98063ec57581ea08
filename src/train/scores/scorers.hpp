// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "trireme/train/scores/scores.hpp"

namespace trireme::train {

/// Of values and fields: root of the mean squared error, mean absolute error, and coefficient of
/// determination (1 - squared errors / squared deviations of the targets from their mean), in units
/// of the data. Over all values: of all errors; the mean of those R2 that are defined. All are NaN
/// if an output is whose target is not missing.
std::unique_ptr<Scorer> score_values(const data::TargetOptions& target, std::int64_t values);

/// F1, precision and recall of each class; a class is predicted if its probability is above 1/2.
/// Over all classes: the means of those that are defined ("macro"). NaN for a class with an output
/// that is NaN, and then over all classes, too.
std::unique_ptr<Scorer> score_class_sets(std::int64_t classes);

/// Of pixels: the intersection over union of each class (Jaccard index), and the accuracy: the
/// right pixels of a class over all that are of this class. Over all classes: the mean of those IoU
/// that are defined; all right pixels over all pixels. A pixel with an output that is NaN is wrong,
/// like a sample with one class.
std::unique_ptr<Scorer> score_pixels(std::int64_t classes);

/// Returns the mean of the scores of a metric that are defined; NaN if none is.
double mean_of_defined(const std::vector<std::vector<double>>& each, std::size_t metric);

}  // namespace trireme::train
