// SPDX-License-Identifier: Apache-2.0
//
// Scores by class and the calibration error, from the results of single samples.
#include "trireme/train/scores/class_scores.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

namespace trireme::train {
namespace {

double ratio(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole)
                   : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

Confusion confusion_of(std::span<const SampleResult> results) {
  Confusion confusion;
  for (const SampleResult& result : results) ++confusion[{result.label, result.predicted}];
  return confusion;
}

double ClassScore::recall() const { return ratio(correct, samples); }
double ClassScore::precision() const { return ratio(correct, predicted); }
double ClassScore::f1() const { return ratio(2 * correct, samples + predicted); }

void add_samples(std::span<ClassScore> scores, std::int32_t label, std::int32_t predicted,
                 std::int64_t samples) {
  ClassScore& of_label = scores[static_cast<std::size_t>(label)];
  of_label.samples += samples;
  if (predicted < 0) return;
  scores[static_cast<std::size_t>(predicted)].predicted += samples;
  if (label == predicted) of_label.correct += samples;
}

std::vector<ClassScore> class_scores(const Confusion& confusion, std::int64_t classes) {
  std::vector<ClassScore> scores(static_cast<std::size_t>(classes));
  for (std::size_t label = 0; label < scores.size(); ++label)
    scores[label].label = static_cast<std::int32_t>(label);
  for (const auto& [pair, samples] : confusion)
    add_samples(scores, pair.first, pair.second, samples);
  return scores;
}

std::vector<ClassScore> worst_first(std::vector<ClassScore> scores) {
  const auto order = [](const ClassScore& score) {
    return score.samples == 0 ? std::tuple(true, 0.0, 0.0)
                              : std::tuple(false, score.recall(), score.f1());
  };
  std::stable_sort(scores.begin(), scores.end(),
                   [&](const ClassScore& a, const ClassScore& b) { return order(a) < order(b); });
  return scores;
}

std::vector<ConfusedPair> most_confused(const Confusion& confusion, std::size_t limit) {
  std::vector<ConfusedPair> pairs;
  for (const auto& [pair, samples] : confusion)
    if (pair.second >= 0 && pair.first != pair.second)
      pairs.push_back({pair.first, pair.second, samples});
  std::stable_sort(pairs.begin(), pairs.end(), [](const ConfusedPair& a, const ConfusedPair& b) {
    return a.samples > b.samples;
  });
  pairs.resize(std::min(pairs.size(), limit));
  return pairs;
}

double calibration_error(std::span<const SampleResult> results) {
  struct Bin {
    std::int64_t correct = 0;
    double probability = 0;
  };
  std::array<Bin, calibration_bins> bins{};
  for (const SampleResult& result : results) {
    if (std::isnan(result.probability)) return result.probability;
    const auto bin = static_cast<int>(std::ceil(result.probability * calibration_bins)) - 1;
    Bin& at = bins[static_cast<std::size_t>(std::clamp(bin, 0, calibration_bins - 1))];
    at.correct += result.predicted == result.label;
    at.probability += result.probability;
  }
  // A bin with n of N samples contributes n / N |correct / n - probability / n|.
  double sum = 0;
  for (const Bin& bin : bins) sum += std::abs(static_cast<double>(bin.correct) - bin.probability);
  return sum / static_cast<double>(results.size());
}

}  // namespace trireme::train
