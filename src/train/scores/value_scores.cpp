// SPDX-License-Identifier: Apache-2.0
//
// Scores of values and fields. Each rank adds errors and moments of its targets in float64;
// gather() adds those of all ranks, moves the deviations to the common mean, and divides.
#include <algorithm>

#include "scorers.hpp"
#include "trireme/base/check.hpp"

namespace trireme::train {
namespace {

class ValueScorer : public Scorer {
 public:
  ValueScorer(const data::TargetOptions& target, std::int64_t values)
      : answer_(target.answer()), sums_(static_cast<std::size_t>(values)) {
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      mean_.push_back(target.mean_of(i));
      std_.push_back(target.std_of(i));
    }
  }
  void add(const EvaluatedRows& rows) override;
  Scores gather(const comm::Communicator& world) const override;

 private:
  /// Of one value. The deviations are from the mean of this rank's targets (Welford 1962).
  struct Sum {
    double count = 0, squared_errors = 0, errors = 0, mean = 0, squared_deviations = 0;
    double least = std::numeric_limits<double>::infinity(),
           greatest = -std::numeric_limits<double>::infinity();
  };
  const Answer& answer_;
  std::vector<double> mean_, std_;
  std::vector<Sum> sums_;
};

void ValueScorer::add(const EvaluatedRows& rows) {
  const std::size_t width = sums_.size();
  TRIREME_EXPECT(rows.numbers.size() % width == 0 && rows.logits.size() == rows.numbers.size());
  for (std::size_t i = 0; i < rows.numbers.size(); ++i) {
    if (std::isnan(rows.numbers[i])) continue;  // It is missing.
    Sum& sum = sums_[i % width];
    const double std = std_[i % width], normal = rows.numbers[i],
                 target = normal * std + mean_[i % width],
                 error = (static_cast<double>(rows.logits[i]) - normal) * std;
    sum.count += 1;
    sum.squared_errors += error * error;
    sum.errors += std::abs(error);
    const double before = target - sum.mean;
    sum.mean += before / sum.count;
    sum.squared_deviations += before * (target - sum.mean);
    sum.least = std::min(sum.least, target);
    sum.greatest = std::max(sum.greatest, target);
  }
}

Scores ValueScorer::gather(const comm::Communicator& world) const {
  constexpr std::size_t fields = 4;
  // 1. Counts, errors, and the mean of the targets over all ranks.
  std::vector<double> sums;
  for (const Sum& sum : sums_)
    sums.insert(sums.end(), {sum.count, sum.squared_errors, sum.errors, sum.count * sum.mean});
  world.all_reduce(sums, comm::Reduction::sum);
  // 2. Deviations from that mean: those from the mean of each rank, moved.
  std::vector<double> deviations;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const double mean = sums[fields * i + 3] / std::max(sums[fields * i], 1.0),
                 shift = sums_[i].mean - mean;
    deviations.push_back(sums_[i].squared_deviations + sums_[i].count * shift * shift);
  }
  world.all_reduce(deviations, comm::Reduction::sum);
  // 3. Equal targets have no deviations but those of rounding.
  std::vector<double> least, greatest;
  for (const Sum& sum : sums_) {
    least.push_back(sum.least);
    greatest.push_back(sum.greatest);
  }
  world.all_reduce(least, comm::Reduction::min);
  world.all_reduce(greatest, comm::Reduction::max);
  // 4. Scores.
  Scores scores{.answer = &answer_, .all = {}, .each = {}};
  double count = 0, squared = 0, absolute = 0;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const double n = sums[fields * i], squared_here = sums[fields * i + 1],
                 absolute_here = sums[fields * i + 2];
    // Without targets 0 / 0, which is NaN.
    scores.each.push_back({std::sqrt(squared_here / n), absolute_here / n,
                           least[i] < greatest[i] ? 1 - squared_here / deviations[i]
                                                  : std::numeric_limits<double>::quiet_NaN()});
    count += n;
    squared += squared_here;
    absolute += absolute_here;
  }
  const double r2 = std::isnan(squared) ? squared : mean_of_defined(scores.each, 2);
  scores.all = {std::sqrt(squared / count), absolute / count, r2};
  return scores;
}

}  // namespace

std::unique_ptr<Scorer> score_values(const data::TargetOptions& target, std::int64_t values) {
  return std::make_unique<ValueScorer>(target, values);
}

}  // namespace trireme::train
