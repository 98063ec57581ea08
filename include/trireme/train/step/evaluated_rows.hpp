// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::train {

/// Results of the samples of a micro-batch, in host memory. Padding is left out.
struct EvaluatedRows {
  std::span<const std::int64_t> samples;  ///< Their indices in the dataset.
  /// Classes: one for each sample, or pixel of a map; -1: unknown. Language models: the tokens that
  /// follow, [samples, context].
  std::span<const std::int32_t> labels;
  /// Targets that are float32 (Answer::has_float_targets): vectors [samples, classes] or fields
  /// [samples, pixels, classes], normalized; NaN: unknown.
  std::span<const float> numbers = {};
  std::int64_t classes = 0;  ///< Outputs of a sample, pixel or token.
  std::span<const float>
      logits;  ///< Images: outputs [samples, classes] or [samples, pixels, classes].
  std::span<const float> losses;  ///< Language models: of each label.
};

/// Receives the results of micro-batches on one rank. Valid until it returns. It makes no
/// collective call: other ranks may receive fewer micro-batches, or none.
using RowSink = std::function<void(const EvaluatedRows&)>;

/// The images that a model sees of each sample.
enum class ImageViews : std::uint8_t { plain, with_mirror_image };

/// Evaluates the mirror images of a micro-batch as entry `number` (PipelineStage::evaluate), and
/// returns the logits [micro, classes], including those of padding; nothing on ranks outside the
/// last stage. Needs KeptRows::logits. Waits for the device. All stages call it.
std::vector<float> mirrored_logits(Replica& replica, data::MicroBatch batch, int number);

/// Reads the results of the micro-batch that the stage has just evaluated, and passes them to
/// `sink`. Needs ReplicaOptions::kept_rows. Waits for the device. Of the ranks that share a
/// micro-batch only the first tensor rank of the last stage receives anything.
///
/// `mirrored`: logits of the same micro-batch; the sink receives the mean of both. Empty: none.
void pass_rows(Replica& replica, const data::MicroBatch& batch, const RowSink& sink,
               std::span<const float> mirrored = {});

}  // namespace trireme::train
