// SPDX-License-Identifier: Apache-2.0
#include "scorers.hpp"
#include "trireme/base/check.hpp"
#include "trireme/train/scores/sample_result.hpp"

namespace trireme::train {
namespace {

/// Counts pixels by class. Counts in float64 are exact, so no order matters.
class PixelScorer : public Scorer {
 public:
  explicit PixelScorer(std::int64_t classes)
      : classes_(static_cast<std::size_t>(classes)), counts_(counted * classes_) {}

  void add(const EvaluatedRows& rows) override {
    TRIREME_EXPECT(rows.logits.size() == rows.labels.size() * classes_);
    for (std::size_t i = 0; i < rows.labels.size(); ++i) {
      if (rows.labels[i] < 0) continue;
      const auto label = static_cast<std::size_t>(rows.labels[i]);
      const std::int32_t predicted = predicted_class(rows.logits.subspan(i * classes_, classes_));
      ++counts_[counted * label + targets];
      if (predicted < 0) continue;  // An output is NaN, so the pixel is wrong.
      ++counts_[counted * static_cast<std::size_t>(predicted) + predictions];
      counts_[counted * label + hits] += predicted == rows.labels[i];
    }
  }

  Scores gather(const comm::Communicator& world) const override {
    std::vector<double> sums = counts_;
    world.all_reduce(sums, comm::Reduction::sum);
    Scores scores{.answer = &answer_of(AnswerKind::pixels), .all = {}, .each = {}};
    const auto ratio = [](double part, double whole) {
      return whole > 0 ? part / whole : std::numeric_limits<double>::quiet_NaN();
    };
    double right = 0, all = 0;
    for (std::size_t c = 0; c < classes_; ++c) {
      const double* const sum = &sums[counted * c];
      scores.each.push_back({ratio(sum[hits], sum[predictions] + sum[targets] - sum[hits]),
                             ratio(sum[hits], sum[targets])});
      right += sum[hits];
      all += sum[targets];
    }
    scores.all = {mean_of_defined(scores.each, 0), ratio(right, all)};
    return scores;
  }

 private:
  enum Count : std::size_t { hits, predictions, targets, counted };
  std::size_t classes_;
  std::vector<double> counts_;  ///< [classes][counted]
};

}  // namespace

std::unique_ptr<Scorer> score_pixels(std::int64_t classes) {
  return std::make_unique<PixelScorer>(classes);
}

}  // namespace trireme::train
