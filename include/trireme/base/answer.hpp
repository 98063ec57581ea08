// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// A metric of an evaluation, which keys such as checkpoint.best name.
struct EvaluationMetric {
  const char* word;  ///< also the key in rows of kind "evaluate"
  bool is_better_if_higher;
  const char* label;  ///< in texts
  const char* form;   ///< of a value, for fmt; a share is given in percent
  bool is_share;      ///< from 0 to 1
};

/// Returns all metrics, in the order in which texts and messages list them.
std::span<const EvaluationMetric> evaluation_metrics();
/// Returns a metric by its word; there must be one.
const EvaluationMetric& evaluation_metric(std::string_view word);
/// Returns the words of all metrics.
std::vector<std::string> metric_words();
/// Returns a value of a metric as text: "91.30 %", or "-" if it is NaN.
std::string value_text(const EvaluationMetric& metric, double value);

/// The kind of answer that a model gives for each sample.
enum class AnswerKind : std::uint8_t {
  one_class,
  tokens,   ///< the token after each of the sample
  classes,  ///< for each class whether it is there
  values,   ///< a vector of numbers
  pixels,   ///< a class for each pixel
  field     ///< one or more numbers for each pixel
};

/// The extents of an answer: the outputs of a model for a sample.
struct AnswerExtents {
  std::int64_t count = 0;              ///< classes or numbers: of the sample, or of each pixel
  std::int64_t height = 0, width = 0;  ///< of a map; 0: there is one answer
  bool is_map() const { return height > 0; }
  std::int64_t places() const { return is_map() ? height * width : 1; }
  bool operator==(const AnswerExtents&) const = default;
};

/// The properties of an answer: one row of a table. Code that reads targets, and code that computes
/// losses, scores and predictions from them, names the kinds; all other code asks for properties.
struct Answer {
  AnswerKind kind;
  const char* word;   ///< the value of target.kind; "tokens" of language models
  const char* parts;  ///< of a target, in words: "classes", "tokens", "values" or "components"
  const char* part;   ///< one of them
  /// The target is a float32 for each output of the model (of the sample, or of each pixel); else
  /// int32: a class.
  bool has_float_targets;
  bool is_map;  ///< there is an answer for each pixel; targets may be missing at some of them
  const char* prediction;  ///< the dataset of predictions, in `evaluate --predictions`
  bool has_units;          ///< the numbers have units, so target.normalize may change them
  bool allows_cutmix;      ///< targets can be mixed by the area of the image that remains
  /// Words of its metrics beside the loss, in the order of texts and rows.
  std::vector<std::string_view> metrics;
  const char* best;  ///< default of checkpoint.best
  /// The metric that is the share of rows of outputs whose largest is that of the label, which
  /// training counts, too; null: rows have none.
  const char* hit_metric;
  bool is_measured_by(std::string_view metric) const;
  /// Each sample has one class, so classes can be ranked, confused and named.
  bool is_one_class() const { return kind == AnswerKind::one_class; }
  bool is_tokens() const { return kind == AnswerKind::tokens; }
  /// Each pixel has one class.
  bool has_classes_of_pixels() const { return is_map && !has_float_targets; }
  /// The metrics are computed on the host, from the outputs.
  bool is_scored() const { return !is_one_class() && !is_tokens(); }
};

const Answer& answer_of(AnswerKind kind);
/// Returns the answers that the key target.kind selects, in their order: all but tokens.
std::span<const Answer> target_answers();
/// Returns the condition that target.kind selects an answer with a property, as in `kind = "pixels"
/// or "field"`.
std::string kinds_of_targets(const std::function<bool(const Answer&)>& property);
/// Returns all answers.
std::span<const Answer> answers();
/// Returns the words of the metrics for an answer, as in "loss" or "top1".
std::string quoted_metrics(const Answer& answer);

}  // namespace trireme
