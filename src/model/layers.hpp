// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/model/head.hpp"
#include "trireme/ops/convolution.hpp"
#include "trireme/ops/linear.hpp"
#include "trireme/ops/normalization.hpp"

namespace trireme::model {

// Layers of image models, from which blocks are built.
//
// A layer's forward pushes the tensors that its backward needs on the stack of the pass. So a block
// calls the backward functions in exactly the reverse order of its forward calls.

/// A square convolution without bias on x [B, H, W, C]. Its parameter is `<name>.weight`.
class Convolution2d {
 public:
  /// Channels of input and output; rows and columns of the kernel, of a step, and of the zeros at
  /// each edge of the image.
  struct Sizes {
    std::int64_t in, out, kernel = 1, stride = 1;
    ops::Padding padding = 0;
    std::int64_t dilation = 1;  ///< pixels from one tap of the kernel to the next
    /// Rows and columns of the opposite edge that continue the image, at most all of them.
    ops::Padding wrapped = 0;
  };
  /// Without a start the weights are Kaiming normal (fan out).
  Convolution2d(std::string name, const Sizes& sizes,
                const std::optional<parallel::Initializer>& start = {});
  void declare(parallel::ParameterList& list);
  /// Returns the shape [B, H', W', out] of the output.
  Shape output_shape(const Shape& input) const;
  /// Returns y. If `statistics` is not null, it also computes the statistics that a batch norm of y
  /// needs.
  Tensor forward(MicroBatchPass& pass, const Tensor& x,
                 const ops::BatchStatistics* statistics = nullptr);
  /// Writes the weight's gradient and returns dx, plus `addend` if that is defined: a gradient of x
  /// from elsewhere. With `want_dx` false (the model's first layer) returns an undefined tensor.
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx = true,
                  const Tensor& addend = {});

 private:
  ops::Weight weight(MicroBatchPass& pass) { return pass.single_use_weight(weight_, prepared_); }
  bool wraps() const { return sizes_.wrapped.sum() > 0; }
  /// Returns the shape of an image with its periodic borders.
  Shape wrapped_shape(const Shape& input) const;
  /// Copies x with its periodic borders to the workspace. Without borders returns x.
  Tensor wrap(MicroBatchPass& pass, const Tensor& x) const;
  /// `input`: the shape in memory, without periodic borders.
  ops::Convolution problem(const Shape& input, DType dtype) const;
  std::string name_;
  Sizes sizes_;
  parallel::Initializer start_;
  parallel::ParameterId weight_;
  ops::PreparedWeight prepared_;
};

enum class ImageNormKind : std::uint8_t { batch, group };

/// Batch or group norm over channels, fused with the ReLU and the residual sum that follow it.
/// Parameters: `<name>.weight`, `.bias`; for batch norm also `.running_mean`, `.running_var`.
class ImageNorm {
 public:
  /// The operations after the norm: none, ReLU, or the residual sum and ReLU.
  enum class FusedActivation : std::uint8_t { none, relu, add_relu };
  /// `zero_scale`: the scale starts at 0, so that a residual block starts as the identity.
  /// `groups`: those of a group norm; 0: default_groups().
  ImageNorm(std::string name, ImageNormKind kind, std::int64_t channels, FusedActivation activation,
            bool zero_scale = false, std::int64_t groups = 0);
  /// Returns 32, or the next smaller divisor of the channels.
  static std::int64_t default_groups(std::int64_t channels);
  void declare(parallel::ParameterList& list);
  /// Returns y = activation(norm(convolution(x)) [+ residual]). It calls the convolution itself,
  /// which may compute the norm's statistics with its own result. `residual` only with add_relu.
  Tensor forward(MicroBatchPass& pass, Convolution2d& convolution, const Tensor& x,
                 const Tensor& residual = {}) {
    return forward_behind(pass, &convolution, x, residual);
  }
  /// The same without a convolution: y = activation(norm(x) [+ residual]).
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual = {}) {
    return forward_behind(pass, nullptr, x, residual);
  }
  /// Gradients of the norm's input and of the residual; the latter is undefined without one.
  struct Gradients {
    Tensor dx, dresidual;
  };
  /// Runs the backward of the norm only; the caller runs the convolution's backward next. Without a
  /// residual, dx overwrites dy. With one, dresidual overwrites dy and dx is newly allocated.
  Gradients backward(MicroBatchPass& pass, const Tensor& dy);

  /// The input of a batch norm in training and its statistics.
  struct Convolved {
    Tensor x;
    ops::BatchStatistics statistics;
  };
  /// Runs the convolution in front of a batch norm in training. Saves what the convolution's
  /// backward needs, and nothing of the norm. Null: the input is that of the norm.
  Convolved convolve(MicroBatchPass& pass, Convolution2d* convolution, const Tensor& input);
  /// forward() of a batch norm with add_relu, joined with the norm of the shortcut
  /// (ops::batch_norm_apply_joined()). `residual` is from the convolve() of `shortcut`. In
  /// training.
  Tensor forward_joined(MicroBatchPass& pass, Convolution2d& convolution, const Tensor& input,
                        const ImageNorm& shortcut, const Convolved& residual);
  /// Runs the backward of both norms. dresidual, the gradient of the result of the shortcut's
  /// convolution, overwrites dy; dx is newly allocated.
  Gradients backward_joined(MicroBatchPass& pass, const Tensor& dy, const ImageNorm& shortcut);

 private:
  Tensor forward_behind(MicroBatchPass& pass, Convolution2d* convolution, const Tensor& input,
                        const Tensor& residual);
  ops::BatchNorm batch_norm(const Tensor& x) const;
  /// Returns the tensors that forward of a joined norm needs.
  ops::JoinedBatchNorm joined(MicroBatchPass& pass, const Convolved& convolved) const;

  std::string name_;
  ImageNormKind kind_;
  std::int64_t channels_, groups_;
  FusedActivation activation_;
  bool zero_scale_;
  parallel::ParameterId scale_, shift_, running_mean_, running_variance_;
};

/// A linear layer: y [B, N] = x [B, K] W^T + b with `<name>.weight` [N, K] and `<name>.bias`.
///
/// Every rank of a tensor group has the whole layer. The first one multiplies, so that all of them
/// have the same bits; or each multiplies the rows that it holds, if sequence parallelism has split
/// them.
class LinearLayer {
 public:
  /// The rows of x: all of them, or those that the rank holds.
  enum class Rows : std::uint8_t { all, held };
  /// Distributions of the initial values.
  struct Start {
    parallel::Initializer weight, bias;
  };
  /// Without a start both are uniform in +-1/sqrt(K), as in PyTorch.
  LinearLayer(std::string name, std::int64_t in, std::int64_t out,
              const std::optional<Start>& start = {}, Rows rows = Rows::all);
  void declare(parallel::ParameterList& list);
  Tensor forward(MicroBatchPass& pass, const Tensor& x);
  /// The same with y in memory of the caller, which backward does not need.
  void forward(MicroBatchPass& pass, const Tensor& x, const Tensor& y);
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx = true);

 private:
  ops::Weight weight(MicroBatchPass& pass) { return pass.single_use_weight(weight_, prepared_); }
  /// Returns whether this rank multiplies its own rows.
  bool multiplies_own_rows(const MicroBatchPass& pass) const {
    return rows_ == Rows::held && pass.tensor().rows_are_split();
  }
  /// Calls compute(), which writes y; on the first rank alone if the ranks have the same rows.
  template <class Compute>
  void compute(MicroBatchPass& pass, const Tensor& y, Compute&& compute) const;
  std::string name_;
  std::int64_t in_, out_;
  Rows rows_;
  Start start_;
  parallel::ParameterId weight_, bias_;
  ops::PreparedWeight prepared_;
};

/// A head with one row of outputs per sample or pixel, logits of classes or numbers: the loss of
/// LossSettings on top of a subclass's forward.
class ClassifierHead : public Head {
 public:
  /// `rows`: those of a sample in the head's input.
  explicit ClassifierHead(std::int64_t rows = 1) : rows_(rows) {}
  Tensor loss(MicroBatchPass& pass, const Tensor& x, const Tensor& labels,
              const LossSettings& scale, const Tensor& sums) final;
  Tensor logits(MicroBatchPass& pass, const Tensor& x, std::int64_t row) final;

 private:
  /// Returns logits [B, classes], of a map [B, height, width, classes].
  virtual Tensor forward(MicroBatchPass& pass, const Tensor& x) = 0;
  /// Writes the gradients of the parameters and returns dx.
  virtual Tensor backward(MicroBatchPass& pass, const Tensor& dlogits) = 0;
  std::int64_t rows_;
};

}  // namespace trireme::model
