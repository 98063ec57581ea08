#pragma once

#include <string>

#include "trireme/model/block.hpp"

namespace trireme::model {

/// How a micro-batch's loss enters the step's.
struct LossSettings {
  float label_smoothing = 0;
  float gradient_scale = 0;  ///< 1 / N, N the samples (tokens) of the whole step
};

/// The last part of a model: makes a loss of the last block's output. Its forward, the loss and its
/// backward are one call, made when backward begins: so logits need not outlive a tile of rows.
class Head {
 public:
  virtual ~Head() = default;
  virtual std::string name() const = 0;
  virtual void declare(parallel::ParameterList& list) = 0;
  /// `labels` int32, one a row (image models: a sample); -1: counts nowhere. `sums` float64 [4] =
  /// loss sum, count, right at rank 1, right at rank 5 over the whole rows (the same on every rank
  /// of the tensor group). In training writes the head's gradients and returns dx of x's shape
  /// (memory of Pass::gradient; undefined where no block stands before the head); in evaluation
  /// returns an undefined tensor.
  virtual Tensor loss(MicroBatchPass& pass, const Tensor& x, const Tensor& labels,
                      const LossSettings& scale, const Tensor& sums) = 0;
  /// Evaluation: logits float32 [rows, classes] of row `row` of x alone ([1, classes]), all classes
  /// on every rank of the tensor group.
  virtual Tensor logits(MicroBatchPass& pass, const Tensor& x, std::int64_t row) = 0;
};

}  // namespace trireme::model
