#pragma once

#include <cstdint>
#include <string>

#include "trireme/model/head.hpp"
#include "trireme/model/options.hpp"
#include "trireme/ops/linear.hpp"
#include "trireme/ops/normalization.hpp"

namespace trireme::model {

/// Layers are the parts that blocks are made of. Each leaves what its backward needs on the pass's
/// stack, so a block calls the backwards in exactly the reverse order of its forwards.

/// Square convolution without bias: `<name>.weight`, Kaiming normal (fan out). x [B, H, W, C].
class Convolution2d {
 public:
  Convolution2d(std::string name, std::int64_t in, std::int64_t out, std::int64_t kernel,
                std::int64_t stride);
  void declare(parallel::ParameterList& list);
  Shape output_shape(const Shape& input) const;
  /// `statistics`: those that a batch norm of the result needs are made too; null: none.
  Tensor forward(MicroBatchPass& pass, const Tensor& x,
                 const ops::BatchStatistics* statistics = nullptr);
  /// Undefined where `want_dx` is false (the model's first layer).
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx = true);

 private:
  ops::Weight weight(MicroBatchPass& pass) {
    return pass.weight(pass.store().weight(weight_), prepared_);
  }
  std::string name_;
  std::int64_t in_, out_, kernel_, stride_;
  parallel::ParameterId weight_;
  ops::PreparedWeight prepared_;
};

/// Batch or group norm over channels with what follows it folded in: `<name>.weight`, `.bias`, and
/// for batch norm `.running_mean`, `.running_var`.
class ImageNorm {
 public:
  enum class FusedActivation : std::uint8_t { none, relu, add_relu };
  ImageNorm(std::string name, ResnetNorm kind, std::int64_t channels, FusedActivation activation,
            bool zero_scale = false);
  void declare(parallel::ParameterList& list);
  /// y = act(norm(convolution(x)) [+ residual]), for the convolution may make the norm's statistics
  /// beside its own result; `residual` only with Then::add_relu.
  Tensor forward(MicroBatchPass& pass, Convolution2d& convolution, const Tensor& x,
                 const Tensor& residual = {});
  struct Gradients {
    Tensor dx, dresidual;
  };
  /// Of the norm alone: the convolution's own backward follows. Without a residual dx is written
  /// over dy; with one, dresidual is written over dy and dx is new.
  Gradients backward(MicroBatchPass& pass, const Tensor& dy);

 private:
  std::string name_;
  ResnetNorm kind_;
  std::int64_t channels_, groups_;
  FusedActivation activation_;
  bool zero_scale_;
  parallel::ParameterId scale_, shift_, running_mean_, running_variance_;
};

/// y [B, N] = x [B, K] times `<name>.weight` [N, K], plus `<name>.bias`; uniform(+-1/sqrt(K)) as
/// PyTorch's.
class LinearLayer {
 public:
  LinearLayer(std::string name, std::int64_t in, std::int64_t out);
  void declare(parallel::ParameterList& list);
  Tensor forward(MicroBatchPass& pass, const Tensor& x);
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx = true);

 private:
  ops::Weight weight(MicroBatchPass& pass) {
    return pass.weight(pass.store().weight(weight_), prepared_);
  }
  std::string name_;
  std::int64_t in_, out_;
  parallel::ParameterId weight_, bias_;
  ops::PreparedWeight prepared_;
};

/// A head that makes a row of logits a sample: cross-entropy over its own forward and backward.
class ClassifierHead : public Head {
 public:
  Tensor loss(MicroBatchPass& pass, const Tensor& x, const Tensor& labels,
              const LossSettings& scale, const Tensor& sums) final;
  Tensor logits(MicroBatchPass& pass, const Tensor& x, std::int64_t row) final;

 private:
  /// Logits [B, classes].
  virtual Tensor forward(MicroBatchPass& pass, const Tensor& x) = 0;
  virtual Tensor backward(MicroBatchPass& pass, const Tensor& dlogits) = 0;
};

}  // namespace trireme::model
