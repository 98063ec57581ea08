// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "trireme/data/dataset.hpp"

namespace trireme::data {

/// A dataset that is described in words instead of by a folder of shards (`check --assume`).
struct Assumption {
  DatasetKind kind = DatasetKind::images;
  std::int64_t count = 0;  ///< samples of images, or tokens
  /// Images. Encoded images may have any size: height and width are 0.
  std::int64_t height = 0, width = 0, channels = 0, classes = 0;
  /// The answer whose parts `classes` counts: classes, or the numbers of a vector or of a pixel.
  AnswerKind answer = AnswerKind::one_class;
  bool is_float = false;        ///< images of float32, of files of other programs
  std::int64_t vocabulary = 0;  ///< tokens
};

/// Parses "images:COUNT,HxWxC,CLASSES", "fields:COUNT,HxWxC,CLASSES" (float32),
/// "fields:COUNT,HxWxC,KIND:N" (N outputs of this target.kind) or "tokens:COUNT,VOCABULARY"; "any"
/// for HxW means encoded images of any size. The limits are those of shards. Throws InputError with
/// the wrong part.
Assumption parse_assumption(const std::string& text);

/// Returns the text that parse_assumption() reads back to the same assumption.
std::string to_string(const Assumption& assumption);

/// Returns the description that a folder of one shard with this content would have, if its samples
/// have this form. The extents of maps stay 0: the model decides them. Throws InputError if the
/// tokens hold no sample, or the targets are others than those of the form.
DatasetInfo describe(const Assumption& assumption, const SampleForm& form);

}  // namespace trireme::data
