// SPDX-License-Identifier: Apache-2.0
#include "scorers.hpp"
#include "trireme/base/check.hpp"

namespace trireme::train {
namespace {

constexpr double no_score = std::numeric_limits<double>::quiet_NaN();

/// Counts of right and wrong answers. Counts in float64 are exact, so no order matters.
class ClassSetScorer : public Scorer {
 public:
  explicit ClassSetScorer(std::int64_t classes)
      : classes_(static_cast<std::size_t>(classes)), counts_(counted * classes_) {}

  void add(const EvaluatedRows& rows) override {
    TRIREME_EXPECT(rows.numbers.size() == rows.samples.size() * classes_ &&
                   rows.logits.size() == rows.numbers.size());
    for (std::size_t i = 0; i < rows.numbers.size(); ++i) {
      double* const counts = &counts_[counted * (i % classes_)];
      const bool predicted = rows.logits[i] > 0, there = rows.numbers[i] > 0.5F;
      counts[hits] += predicted && there;
      counts[predictions] += predicted;
      counts[targets] += there;
      // An output that is NaN is no answer, and must not look like a right "no".
      counts[broken] += std::isnan(rows.logits[i]);
    }
  }

  Scores gather(const comm::Communicator& world) const override {
    std::vector<double> sums = counts_;
    world.all_reduce(sums, comm::Reduction::sum);
    Scores scores{.answer = &answer_of(AnswerKind::classes), .all = {}, .each = {}};
    const auto ratio = [](double part, double whole) {
      return whole > 0 ? part / whole : no_score;
    };
    bool is_broken = false;
    for (std::size_t c = 0; c < classes_; ++c) {
      const double* const sum = &sums[counted * c];
      scores.each.push_back({ratio(2 * sum[hits], sum[predictions] + sum[targets]),
                             ratio(sum[hits], sum[predictions]), ratio(sum[hits], sum[targets])});
      if (sum[broken] == 0) continue;
      scores.each.back() = {no_score, no_score, no_score};
      is_broken = true;
    }
    // A mean without the classes that are broken would look like a better model.
    for (std::size_t metric = 0; metric < scores.answer->metrics.size(); ++metric)
      scores.all.push_back(is_broken ? no_score : mean_of_defined(scores.each, metric));
    return scores;
  }

 private:
  enum Count : std::size_t { hits, predictions, targets, broken, counted };
  std::size_t classes_;
  std::vector<double> counts_;  ///< [classes][counted]
};

}  // namespace

std::unique_ptr<Scorer> score_class_sets(std::int64_t classes) {
  return std::make_unique<ClassSetScorer>(classes);
}

}  // namespace trireme::train
