// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/model/block.hpp"
#include "trireme/model/options.hpp"

namespace trireme::model {

/// How a micro-batch contributes to the loss of its step.
struct LossSettings {
  const LossKind* kind = nullptr;  ///< never null but for language models, which have one loss
  float label_smoothing = 0, delta = 1;
  /// 1 / N; N = samples (text: tokens; values: samples x values; maps: pixels, of fields x
  /// components) of the whole step
  float gradient_scale = 0;
  /// Images: float32, one per sample, as in ops::ClassTargets and ops::ValueTargets; undefined:
  /// targets are not mixed.
  Tensor label_weights = {};
  /// Classes and pixels: float32 [classes], as in ops::ClassTargets; undefined: 1.
  Tensor class_weights = {};
  /// Evaluation of image models: receives the outputs, float32 [rows, classes or values], where
  /// each pixel of a map is a row; undefined: they are not kept.
  Tensor logits = {};
  /// Evaluation of language models: receives the statistics of each row, float32 [rows, 4], as
  /// ops::softmax_statistics() over all classes; undefined: they are not kept.
  Tensor statistics = {};
};

/// The last part of a model: it computes the loss from the last block's output.
///
/// Its forward, the loss and its backward are one call at the start of backward. So the logits of a
/// large vocabulary can be processed in tiles and never exist as a whole
/// (docs/design/decisions/0007).
class Head {
 public:
  virtual ~Head() = default;
  /// Returns the name for plans and traces.
  virtual std::string name() const = 0;
  /// Returns the layers in words, as Block::contents().
  virtual std::string contents() const { return {}; }
  /// Adds the head's parameters to `list` and keeps their ids.
  virtual void declare(parallel::ParameterList& list) = 0;
  /// Computes the loss and, in training, the head's gradients. Collective over the tensor group.
  ///
  /// `x`: the last block's output. `labels`: int32, one per row (token, sample, or pixel of a map);
  /// rows with label -1 are ignored. For values, fields and several classes: float32 [rows,
  /// outputs]; NaN is ignored. `sums`: float64 [4] on the device = loss sum, row count, rows with
  /// the label (of the larger weight) first, rows with it among the first five; for float32: loss
  /// sum, number of targets, 0, 0. All rows are counted, and every rank of the tensor group gets
  /// the same sums.
  ///
  /// Returns dx in training: x's shape, in memory of MicroBatchPass::gradient(); undefined if the
  /// model has no block before the head. Returns an undefined tensor in evaluation.
  virtual Tensor loss(MicroBatchPass& pass, const Tensor& x, const Tensor& labels,
                      const LossSettings& scale, const Tensor& sums) = 0;
  /// Returns the logits of row `row` of x: float32 [1, classes], with all classes on every rank of
  /// the tensor group. For evaluation only, such as text generation.
  virtual Tensor logits(MicroBatchPass& pass, const Tensor& x, std::int64_t row) = 0;
};

}  // namespace trireme::model
