// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/step/evaluated_rows.hpp"

#include <cmath>
#include <vector>

namespace trireme::train {
namespace {

/// Returns the loss of each row of statistics [rows, 4] (ops::softmax_statistics).
std::vector<float> losses_of(std::span<const float> statistics) {
  std::vector<float> losses;
  losses.reserve(statistics.size() / 4);
  for (std::size_t i = 0; i + 3 < statistics.size(); i += 4) {
    const double largest = statistics[i], exponentials = statistics[i + 1],
                 label_logit = statistics[i + 3];
    losses.push_back(static_cast<float>(largest + std::log(exponentials) - label_logit));
  }
  return losses;
}

}  // namespace

std::vector<float> mirrored_logits(Replica& replica, data::MicroBatch batch, int number) {
  TRIREME_EXPECT(replica.options().kept_rows == KeptRows::logits);
  const std::vector<ops::ImageTransform> mirror(static_cast<std::size_t>(replica.options().micro),
                                                ops::ImageTransform{.flip = 1});
  batch.transforms = mirror.data();
  replica.stage().evaluate(batch, number, true);
  std::vector<float> logits(static_cast<std::size_t>(replica.stage().row_values()));
  replica.stage().read_rows(logits);
  synchronize(replica.context().stream());  // Every stage may still read the transforms.
  return logits;
}

void pass_rows(Replica& replica, const data::MicroBatch& batch, const RowSink& sink,
               std::span<const float> mirrored) {
  PipelineStage& stage = replica.stage();
  if (stage.row_values() == 0 || replica.mesh().coordinates.tensor_rank != 0) return;
  // 1. Read the results of the whole micro-batch.
  const ReplicaOptions& options = replica.options();
  std::vector<float> values(static_cast<std::size_t>(stage.row_values()));
  stage.read_rows(values);
  TRIREME_EXPECT(mirrored.empty() || mirrored.size() == values.size());
  for (std::size_t i = 0; i < mirrored.size(); ++i) values[i] = (values[i] + mirrored[i]) / 2;
  if (batch.labels.device == DeviceKind::meta) return;  // A rehearsal has no results.
  // 2. Leave padding out: it follows the valid rows.
  const auto samples = static_cast<std::size_t>(batch.valid_rows);
  const std::size_t labels = samples * static_cast<std::size_t>(options.labels_per_sample());
  EvaluatedRows rows{.samples = {batch.samples, samples},
                     .labels = {},
                     .numbers = {},
                     .classes = options.outputs.count,
                     .logits = {},
                     .losses = {}};
  if (options.answer().has_float_targets)
    rows.numbers = {batch.labels.as<float>(), labels};
  else
    rows.labels = {batch.labels.as<std::int32_t>(), labels};
  std::vector<float> losses;
  if (options.kept_rows == KeptRows::logits) {
    rows.logits = std::span(values).first(
        samples * static_cast<std::size_t>(options.rows_per_sample() * options.outputs.count));
  } else {
    losses = losses_of(std::span(values).first(4 * labels));
    rows.losses = losses;
  }
  sink(rows);
}

}  // namespace trireme::train
