// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/targets/target_options.hpp"
#include "trireme/train/step/evaluated_rows.hpp"

namespace trireme::train {

/// Scores of one value of the target, or of all, in units of the data.
struct ValueScore {
  double rmse = 0;  ///< root of the mean squared error
  double mae = 0;   ///< mean absolute error
  /// Coefficient of determination: 1 - squared errors / squared deviations of the targets from
  /// their mean. NaN if all targets are equal.
  double r2 = 0;
};

/// Returns "RMSE 0.12, MAE 0.08, R2 0.97".
std::string describe(const ValueScore& score);

/// Scores of the values of a dataset.
struct ValueScores {
  /// rmse and mae over all values; the mean of r2 over those that have it, else NaN
  ValueScore all;
  std::vector<ValueScore> each;
};

/// Sums of errors and targets of each value, in float64, on each rank for the samples that it
/// evaluates.
class ValueSums {
 public:
  /// `values`: numbers in the target of a sample. `target`: how they are normalized.
  ValueSums(std::int64_t values, const data::TargetOptions& target);
  /// Adds the samples of a micro-batch.
  void add(const EvaluatedRows& rows);
  /// Returns the scores over all ranks, the same on each of them. Collective.
  ValueScores gather(const comm::Communicator& world) const;

 private:
  /// Of one value. The deviations are from the mean of this rank's targets (Welford 1962).
  struct Sum {
    double count = 0, squared_errors = 0, errors = 0, mean = 0, squared_deviations = 0;
    double least = std::numeric_limits<double>::infinity(),
           greatest = -std::numeric_limits<double>::infinity();
  };
  std::vector<double> mean_, std_;
  std::vector<Sum> sums_;
};

}  // namespace trireme::train
