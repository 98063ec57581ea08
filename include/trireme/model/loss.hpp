// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "trireme/base/answer.hpp"
#include "trireme/model/options.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::model {

struct LossSettings;

/// A loss of the outputs of a model whose head has a row for each sample or pixel. One row of a
/// table (losses()); other code asks it and does not name it.
struct LossKind {
  const char* word;  ///< the value of loss.kind
  /// Those whose targets it takes: int32 [rows], or float32 [rows, outputs]
  /// (Answer::has_float_targets).
  std::span<const AnswerKind> answers;
  /// The keys of [loss] that belong to it.
  bool has_label_smoothing, has_delta;
  /// Enqueues the loss of outputs [rows, outputs]: `sums` and `doutputs` as those of
  /// ops::cross_entropy() or ops::value_loss().
  void (*compute)(ops::Context&, const Tensor& outputs, const Tensor& targets, const LossSettings&,
                  const Tensor& sums, const Tensor& doutputs);
  bool takes(AnswerKind answer) const;
};

/// Returns all losses. The first one for each answer is its default.
std::span<const LossKind> losses();
const LossKind& default_loss(AnswerKind answer);
/// Returns the loss of the options, or the default.
inline const LossKind& loss_of(const LossOptions& options, AnswerKind answer) {
  return options.kind != nullptr ? *options.kind : default_loss(answer);
}

}  // namespace trireme::model
