// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "trireme/model/options.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::model {

struct LossSettings;

/// A loss of the outputs of a model whose head has a row for each sample. One row of a table
/// (losses()); other code asks it and does not name it.
struct LossKind {
  const char* word;  ///< the value of loss.kind
  /// The targets are float32 [B, outputs]; else they are classes, int32 [B].
  bool takes_values;
  /// The keys of [loss] that belong to it.
  bool has_label_smoothing, has_delta;
  /// Enqueues the loss of outputs [B, outputs]: `sums` and `doutputs` as those of
  /// ops::cross_entropy() or ops::value_loss().
  void (*compute)(ops::Context&, const Tensor& outputs, const Tensor& targets, const LossSettings&,
                  const Tensor& sums, const Tensor& doutputs);
};

/// Returns all losses. The first one for each form of targets is its default.
std::span<const LossKind> losses();
/// Returns the default for targets that are values, or classes.
const LossKind& default_loss(bool values);
/// Returns the loss of the options, or the default.
inline const LossKind& loss_of(const LossOptions& options, bool values) {
  return options.kind != nullptr ? *options.kind : default_loss(values);
}

}  // namespace trireme::model
