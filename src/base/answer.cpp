// SPDX-License-Identifier: Apache-2.0
//
// The answers of models, and their metrics.
#include "trireme/base/answer.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme {
namespace {

constexpr const char* percent = "{:.2f} %";
constexpr EvaluationMetric all_metrics[] = {{"loss", false, "loss", "{:.4g}", false},
                                            {"perplexity", false, "perplexity", "{:.3f}", false},
                                            {"top1", true, "top-1", percent, true},
                                            {"top5", true, "top-5", percent, true},
                                            {"rmse", false, "RMSE", "{:.6g}", false},
                                            {"mae", false, "MAE", "{:.6g}", false},
                                            {"r2", true, "R2", "{:.4g}", false},
                                            {"f1", true, "F1", percent, true},
                                            {"precision", true, "precision", percent, true},
                                            {"recall", true, "recall", percent, true},
                                            {"iou", true, "IoU", percent, true},
                                            {"accuracy", true, "accuracy", percent, true}};

}  // namespace

std::span<const EvaluationMetric> evaluation_metrics() { return all_metrics; }

const EvaluationMetric& evaluation_metric(std::string_view word) {
  const auto found =
      std::find_if(std::begin(all_metrics), std::end(all_metrics),
                   [&](const EvaluationMetric& metric) { return word == metric.word; });
  TRIREME_EXPECT(found != std::end(all_metrics));
  return *found;
}

std::vector<std::string> metric_words() {
  std::vector<std::string> words;
  for (const EvaluationMetric& metric : all_metrics) words.emplace_back(metric.word);
  return words;
}

std::string value_text(const EvaluationMetric& metric, double value) {
  if (std::isnan(value)) return "-";
  return fmt::format(fmt::runtime(metric.form), metric.is_share ? 100 * value : value);
}

std::span<const Answer> answers() {
  using enum AnswerKind;
  static const Answer all[] = {
      {.kind = one_class,
       .word = "class",
       .parts = "classes",
       .part = "class",
       .has_float_targets = false,
       .is_map = false,
       .prediction = "predicted",
       .has_units = false,
       .allows_cutmix = true,
       .metrics = {"top1", "top5"},
       .best = "top1",
       .hit_metric = "top1"},
      {.kind = classes,
       .word = "classes",
       .parts = "classes",
       .part = "class",
       .has_float_targets = true,
       .is_map = false,
       .prediction = "probability",
       .has_units = false,
       .allows_cutmix = true,
       .metrics = {"f1", "precision", "recall"},
       .best = "f1",
       .hit_metric = nullptr},
      {.kind = values,
       .word = "values",
       .parts = "values",
       .part = "value",
       .has_float_targets = true,
       .is_map = false,
       .prediction = "value",
       .has_units = true,
       .allows_cutmix = false,
       .metrics = {"rmse", "mae", "r2"},
       .best = "loss",
       .hit_metric = nullptr},
      {.kind = pixels,
       .word = "pixels",
       .parts = "classes",
       .part = "class",
       .has_float_targets = false,
       .is_map = true,
       .prediction = "predicted",
       .has_units = false,
       .allows_cutmix = false,
       .metrics = {"iou", "accuracy"},
       .best = "iou",
       .hit_metric = "accuracy"},
      {.kind = field,
       .word = "field",
       .parts = "components",
       .part = "component",
       .has_float_targets = true,
       .is_map = true,
       .prediction = "value",
       .has_units = true,
       .allows_cutmix = false,
       .metrics = {"rmse", "mae", "r2"},
       .best = "loss",
       .hit_metric = nullptr},
      {.kind = tokens,
       .word = "tokens",
       .parts = "tokens",
       .part = "token",
       .has_float_targets = false,
       .is_map = false,
       .prediction = "",
       .has_units = false,
       .allows_cutmix = false,
       .metrics = {"perplexity", "top1", "top5"},
       .best = "loss",
       .hit_metric = "top1"},
  };
  return all;
}

std::span<const Answer> target_answers() {
  static const std::vector<Answer> selected = [] {
    std::vector<Answer> some(answers().begin(), answers().end());
    std::erase_if(some, [](const Answer& answer) { return answer.is_tokens(); });
    return some;
  }();
  return selected;
}

std::string kinds_of_targets(const std::function<bool(const Answer&)>& property) {
  std::vector<std::string> words;
  for (const Answer& answer : target_answers())
    if (property(answer)) words.push_back(fmt::format("\"{}\"", answer.word));
  return "kind = " + join_with_or(words);
}

const Answer& answer_of(AnswerKind kind) {
  const auto all = answers();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Answer& answer) { return answer.kind == kind; });
  TRIREME_EXPECT(found != all.end());
  return *found;
}

bool Answer::is_measured_by(std::string_view metric) const {
  return metric == "loss" || std::find(metrics.begin(), metrics.end(), metric) != metrics.end();
}

std::string quoted_metrics(const Answer& answer) {
  std::vector<std::string> words;
  for (const EvaluationMetric& metric : all_metrics)
    if (answer.is_measured_by(metric.word)) words.push_back(fmt::format("\"{}\"", metric.word));
  return join_with_or(words);
}

}  // namespace trireme
