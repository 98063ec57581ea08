// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/scores/class_counts.hpp"

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::train {

ClassCounts::ClassCounts(std::int64_t classes) : scores_(class_scores({}, classes)) {}

void ClassCounts::add(const EvaluatedRows& rows) {
  TRIREME_EXPECT(rows.classes == std::ssize(scores_));
  const auto classes = static_cast<std::size_t>(rows.classes);
  for (std::size_t i = 0; i < rows.samples.size(); ++i)
    add_samples(scores_, rows.labels[i], predicted_class(rows.logits.subspan(i * classes, classes)),
                1);
}

std::vector<ClassScore> ClassCounts::gather(const comm::Communicator& world) const {
  std::vector<std::int64_t> counts;
  for (const ClassScore& score : scores_)
    counts.insert(counts.end(), {score.samples, score.predicted, score.correct});
  world.all_reduce(counts, comm::Reduction::sum);
  std::vector<ClassScore> all = scores_;
  auto count = counts.begin();
  for (ClassScore& score : all) {
    score.samples = *count++;
    score.predicted = *count++;
    score.correct = *count++;
  }
  return all;
}

std::string describe_worst(const std::vector<ClassScore>& scores,
                           const std::vector<std::string>& names, std::size_t limit) {
  std::string text;
  std::int64_t samples_before = 0;
  for (const ClassScore& score : worst_first(scores)) {
    if (score.samples == 0 || limit-- == 0) break;
    text +=
        fmt::format("{}{} {:.2f} %", text.empty() ? "" : ", ",
                    printable(names[static_cast<std::size_t>(score.label)]), 100 * score.recall());
    if (score.samples != samples_before)
      text += " of " + counted(score.samples, "sample", "samples");
    samples_before = score.samples;
  }
  return text;
}

}  // namespace trireme::train
