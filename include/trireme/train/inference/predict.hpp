// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/log.hpp"
#include "trireme/checkpoint/weights/import_export.hpp"

namespace trireme::train {

/// The arguments of `trireme predict`.
struct PredictRequest {
  std::string checkpoint;
  std::vector<std::string> images;  ///< Paths of JPEG and PNG files.
  std::int64_t top = 5;             ///< The most probable classes; at most all of the model.
  /// Images of another size than the model's are scaled to cover it and cut to their center, as
  /// `shard --resize HEIGHTxWIDTH` does. Only for a deck without data.augment.evaluate.
  bool resizes = false;
  bool flips = false;  ///< The logits of each image and its mirror image are averaged.
  checkpoint::Weights weights = checkpoint::Weights::evaluated;
};

/// A class and its probability.
struct ClassProbability {
  std::int32_t label = 0;
  std::string name;  ///< The number, if the checkpoint names no classes.
  double probability = 0;
};

/// The most probable classes of an image, in decreasing order of probability.
using PredictionSink =
    std::function<void(const std::string& image, const std::vector<ClassProbability>& classes)>;

/// Classifies images with the model of a checkpoint, on one rank. Calls `emit` for each image in
/// the order of the request.
///
/// Images are decoded, cropped, scaled and normalized as those of an evaluation with the deck of
/// the checkpoint. Models of one channel see gray images (luma of ITU-R 601, as Pillow's
/// convert("L")). Every file is opened, and its header is read, before the first image is
/// classified. Throws InputError for a file that is no image or has the wrong size, and for a
/// checkpoint without a deck, of a language model, or whose images have no known size.
void predict(const PredictRequest& request, Log& log, const PredictionSink& emit);

}  // namespace trireme::train
