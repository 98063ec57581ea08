// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/data/loader.hpp"
#include "trireme/train/scores/scores.hpp"
#include "trireme/train/step/evaluated_rows.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::train {

/// Metrics of a whole dataset. Each sample counts exactly once; all ranks hold the same numbers.
/// `loss`, `top1` and `top5` are means over labels: samples, tokens of a language model, values,
/// or pixels. `top1` and `top5` are 0 if the answer is scored.
struct Metrics {
  double loss = 0, top1 = 0, top5 = 0;
  std::int64_t num_labels = 0;  ///< Those that count.
  std::int64_t num_samples = 0;
  double counted = 1;                 ///< Maps: the share of the labels of all samples that counts.
  std::optional<Scores> scores = {};  ///< Of answers that have them (Answer::is_scored).
  double perplexity() const { return std::exp(loss); }
  /// Returns the metric of a word (EvaluationMetric), which must be measured for the answer.
  double value_of(std::string_view metric) const;
};

/// Returns the metrics of an answer without the loss, as in "top-1 91.30 %, top-5 99.20 %, 10000
/// samples".
std::string describe(const Metrics& metrics, const Answer& answer);

/// Evaluates the whole dataset of an evaluation loader and returns its metrics on every rank.
///
/// Uses the average of weights and statistics if the replica keeps one, and puts the trained
/// weights back afterwards. Waits for the device. Collective over the replica's mesh.
///
/// If samples cannot be read on one rank, all ranks throw, after they have called `before_error`
/// with the trained weights in place. Every other error is thrown on all ranks without model
/// parallelism, and else on its rank alone.
Metrics evaluate(Replica& replica, data::Loader& loader,
                 const std::function<void()>& before_error = {});

/// The micro-batches of one pass over a dataset.
struct EvaluationPass {
  std::int64_t rounds = 0;  ///< Micro-batches of each data rank; the same on all ranks.
  /// Returns the next micro-batch; stores the error of a reader as data::Loader::next() does.
  std::function<const data::MicroBatch&(std::exception_ptr&)> next;
  /// Receives the results of each micro-batch; empty: they are not read. Needs
  /// ReplicaOptions::kept_rows.
  RowSink sink = {};
  /// Called on all ranks between groups of micro-batches, as to write what the sink has kept. A
  /// group has outputs of up to 64 MiB, or is one micro-batch; no transfers are pending. May be
  /// collective, and throws on all ranks or on none. Empty: nothing is called.
  std::function<void()> between_groups = {};
  /// With the mirror image the sink receives mean logits. The metrics remain those of the plain
  /// images.
  ImageViews views = ImageViews::plain;
};
/// Starts a pass over the whole dataset of an evaluation loader, which outlives it.
EvaluationPass start_pass(data::Loader& loader);
/// The same for a pass that has just begun.
Metrics evaluate(Replica& replica, const EvaluationPass& pass,
                 const std::function<void()>& before_error = {});

}  // namespace trireme::train
