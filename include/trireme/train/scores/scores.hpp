// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/answer.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/targets/target_options.hpp"
#include "trireme/train/step/evaluated_rows.hpp"

namespace trireme::train {

/// Scores of answers whose metrics are computed on the host (Answer::is_scored), from all samples
/// of a set. NaN: the metric is not defined there, or outputs of the model are NaN.
struct Scores {
  const Answer* answer = nullptr;
  /// Over all parts of the target, in the order of answer->metrics.
  std::vector<double> all;
  /// [parts][metrics]: of each value, component or class
  std::vector<std::vector<double>> each;
  /// Returns the score over all parts by the word of the metric, which must be one of the answer.
  double value_of(std::string_view metric) const;
  /// Returns the score of each part by the word of the metric.
  std::vector<double> values_of(std::string_view metric) const;

 private:
  std::size_t index_of(std::string_view metric) const;
};

/// Returns values in the order of answer.metrics as text, as in "RMSE 0.12, MAE 0.08, R2 0.97".
std::string describe(const Answer& answer, const std::vector<double>& values);

/// Sums in float64 from which scores follow, on each rank of the samples that it evaluates.
class Scorer {
 public:
  virtual ~Scorer() = default;
  /// Adds the samples of a micro-batch.
  virtual void add(const EvaluatedRows& rows) = 0;
  /// Returns the scores over all ranks, the same on each of them. Collective.
  virtual Scores gather(const comm::Communicator& world) const = 0;
};

/// Returns the scorer of targets with `outputs` numbers or classes, of a sample or of each pixel.
std::unique_ptr<Scorer> make_scorer(const data::TargetOptions& target, std::int64_t outputs);

}  // namespace trireme::train
