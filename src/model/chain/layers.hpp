// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/layers.hpp"
#include "model/parallel_layers.hpp"
#include "options.hpp"
#include "trireme/ops/patches.hpp"
#include "trireme/ops/pooling.hpp"

namespace trireme::model::chain {

/// Returns the shape of a batch of samples of this shape: an image [height, width, channels],
/// [tokens, channels] or [channels].
Shape batch_of(const Shape& sample, std::int64_t batch);

/// A layer of a chain: one or several entries of the deck. Its tensors are [batch, .., channels].
///
/// As in a block, forward pushes what backward pops, and does not change its input.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual void declare(parallel::ParameterList& /*list*/) {}
  /// Returns y, plus `residual` if that is defined, which needs adds_residual().
  virtual Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) = 0;
  /// Writes the gradients of the weights and returns dx, plus `addend` if that is defined, which
  /// needs adds_gradient(). With `want_dx` false the result is not used.
  virtual Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                          const Tensor& addend) = 0;
  virtual bool adds_residual() const { return false; }
  virtual bool adds_gradient() const { return false; }
  /// Backward reads y, so that nothing may be written into it.
  virtual bool reads_output() const { return true; }
  /// Backward leaves dy as it is, and its result is other memory.
  virtual bool keeps_gradient() const { return true; }
  /// Returns the shape of the input in memory, if this is the first layer of the model.
  virtual Shape input_in_memory(const Shape& input, DType /*dtype*/, DeviceKind /*target*/) const {
    return input;
  }
};

/// Layers in a row.
class Layers {
 public:
  void add(std::unique_ptr<Layer> layer) { layers_.push_back(std::move(layer)); }
  bool empty() const { return layers_.empty(); }
  const Layer& first() const { return *layers_.front(); }
  const Layer& last() const { return *layers_.back(); }
  void declare(parallel::ParameterList& list);
  /// Returns y, plus `residual` if that is defined, which needs last().adds_residual().
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual = {});
  /// Returns dx, plus `addend` if that is defined, which needs first().adds_gradient().
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx, const Tensor& addend = {});

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
};

/// A convolution: `<name>.weight`, and with a bias `<name>.bias`.
class ConvLayer final : public Layer {
 public:
  ConvLayer(const std::string& name, const Convolution2d::Sizes& sizes,
            const parallel::Initializer& start, bool bias);
  void declare(parallel::ParameterList& list) override;
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool adds_gradient() const override { return true; }
  bool reads_output() const override { return false; }
  Shape input_in_memory(const Shape& input, DType dtype, DeviceKind target) const override;

 private:
  Convolution2d convolution_;
  Convolution2d::Sizes sizes_;
  std::string bias_name_;
  bool has_bias_;
  parallel::ParameterId bias_;
};

/// A linear layer on the pixels of each patch, which becomes a token: `<name>.weight` [width,
/// channels, patch, patch], `<name>.bias`.
class PatchesLayer final : public Layer {
 public:
  PatchesLayer(std::string name, const ops::PatchRows& patches, std::int64_t width,
               const parallel::Initializer& start)
      : name_(std::move(name)), patches_(patches), width_(width), start_(start) {}
  void declare(parallel::ParameterList& list) override;
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool adds_gradient() const override { return true; }
  bool reads_output() const override { return false; }

 private:
  /// Copies the patches of x to the rows of a matrix in the workspace.
  Tensor rows_of(MicroBatchPass& pass, const Tensor& x) const;
  ops::Linear problem(const Tensor& rows) const;
  std::string name_;
  ops::PatchRows patches_;
  std::int64_t width_;
  parallel::Initializer start_;
  parallel::ParameterId weight_, bias_;
  ops::PreparedWeight prepared_, prepared_for_dx_;
};

/// A batch or group norm with the convolution in front of it, if there is one, and the activation
/// behind it.
class NormLayer final : public Layer {
 public:
  NormLayer(std::optional<Convolution2d> convolution, ImageNorm norm, bool adds)
      : convolution_(std::move(convolution)), norm_(std::move(norm)), adds_(adds) {}
  void declare(parallel::ParameterList& list) override;
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool adds_residual() const override { return adds_; }
  bool adds_gradient() const override { return convolution_.has_value(); }
  /// With a residual the ReLU is behind the sum, and dy becomes the gradient of the sum.
  bool keeps_gradient() const override { return adds_; }
  Shape input_in_memory(const Shape& input, DType dtype, DeviceKind target) const override;

 private:
  std::optional<Convolution2d> convolution_;
  ImageNorm norm_;
  bool adds_;
};

/// A layer or RMS norm over the channels.
class ChannelNormLayer final : public Layer {
 public:
  ChannelNormLayer(const std::string& name, const RowNormLayer::Options& options, bool zero_scale)
      : norm_(name, options), zero_scale_(zero_scale) {}
  void declare(parallel::ParameterList& list) override { norm_.declare(list, zero_scale_ ? 0 : 1); }
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool adds_gradient() const override { return true; }
  bool reads_output() const override { return false; }
  bool keeps_gradient() const override { return false; }

 private:
  RowNormLayer norm_;
  bool zero_scale_;
};

/// ReLU, GELU or SiLU. `in_place`: nothing else reads its input.
class ActivationLayer final : public Layer {
 public:
  ActivationLayer(ActivationForm form, bool in_place)
      : form_(form), in_place_(in_place && form == ActivationForm::relu) {}
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool reads_output() const override { return form_ == ActivationForm::relu; }
  bool keeps_gradient() const override { return false; }

 private:
  ActivationForm form_;
  bool in_place_;
};

/// Maximum or mean of windows; `pooling` is that of one sample.
class PoolLayer final : public Layer {
 public:
  PoolLayer(const ops::Pooling& pooling, bool is_max) : pooling_(pooling), is_max_(is_max) {}
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool reads_output() const override { return false; }

 private:
  ops::Pooling problem(std::int64_t batch, DType dtype) const;
  ops::Pooling pooling_;
  bool is_max_;
};

/// Makes factor x factor pixels of each pixel.
class UpsampleLayer final : public Layer {
 public:
  explicit UpsampleLayer(std::int64_t factor) : factor_(factor) {}
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool reads_output() const override { return false; }

 private:
  std::int64_t factor_;
};

/// The mean over all pixels or tokens; `input` is the shape of one sample.
class GlobalPoolLayer final : public Layer {
 public:
  explicit GlobalPoolLayer(const Shape& input) : input_(input) {}
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool reads_output() const override { return false; }

 private:
  Shape input_;
};

/// Makes one row of each sample; `input` is the shape of one.
class FlattenLayer final : public Layer {
 public:
  FlattenLayer(const Shape& input, std::int64_t elements) : input_(input), elements_(elements) {}
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool keeps_gradient() const override { return false; }

 private:
  Shape input_;
  std::int64_t elements_;
};

/// A matrix [out, in] with its bias, on the channels of each pixel or token.
class Matrix {
 public:
  Matrix(std::string name, std::int64_t in, std::int64_t out, const parallel::Initializer& start,
         bool bias)
      : name_(std::move(name)), in_(in), out_(out), start_(start), has_bias_(bias) {}
  void declare(parallel::ParameterList& list);
  /// Writes y [rows, out] for x [rows, in], plus `residual` if it is defined.
  void forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual, const Tensor& y);
  /// Writes the gradients of the parameters, and dx if it is defined.
  void backward(MicroBatchPass& pass, const Tensor& x, const Tensor& dy, const Tensor& dx);

 private:
  ops::Linear problem(const Tensor& x) const;
  std::string name_;
  std::int64_t in_, out_;
  parallel::Initializer start_;
  bool has_bias_;
  parallel::ParameterId weight_, bias_;
  ops::PreparedWeight prepared_;
};

class RowsLinearLayer final : public Layer {
 public:
  RowsLinearLayer(const std::string& name, std::int64_t in, std::int64_t out,
                  const parallel::Initializer& start, bool bias)
      : out_(out), matrix_(name, in, out, start, bias) {}
  void declare(parallel::ParameterList& list) override { matrix_.declare(list); }
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool adds_residual() const override { return true; }
  bool reads_output() const override { return false; }

 private:
  std::int64_t out_;
  Matrix matrix_;
};

class DropoutLayer final : public Layer {
 public:
  DropoutLayer(const std::string& name, double rate) : key_(name), rate_(rate) {}
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool keeps_gradient() const override { return false; }

 private:
  DropoutKey key_;
  double rate_;
};

/// Adds a trained vector to each token: `<name>.weight` [1, tokens, width].
class PositionsLayer final : public Layer {
 public:
  PositionsLayer(const std::string& name, const parallel::PositionGrid& grid, std::int64_t width,
                 const parallel::Initializer& start);
  void declare(parallel::ParameterList& list) override { table_ = list.declare(spec_); }
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool reads_output() const override { return false; }
  bool keeps_gradient() const override { return false; }

 private:
  parallel::ParameterSpec spec_;
  parallel::ParameterId table_;
};

/// Attention of all tokens to all tokens: `<name>.qkv`, `<name>.proj`.
class AttentionLayer final : public Layer {
 public:
  AttentionLayer(const std::string& name, std::int64_t tokens, std::int64_t width,
                 std::int64_t heads, const parallel::Initializer& start)
      : tokens_(tokens),
        width_(width),
        heads_(heads),
        qkv_(name + ".qkv", width, 3 * width, start, true),
        projection_(name + ".proj", width, width, start, true) {}
  void declare(parallel::ParameterList& list) override {
    qkv_.declare(list);
    projection_.declare(list);
  }
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool adds_residual() const override { return true; }
  bool reads_output() const override { return false; }

 private:
  ops::Attention problem(std::int64_t batch, DType dtype) const;
  std::int64_t tokens_, width_, heads_;
  Matrix qkv_, projection_;
};

/// Exchanges tokens and channels.
class TransposeLayer final : public Layer {
 public:
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool reads_output() const override { return false; }
};

/// y = body(x) + x, or + projection(x) if the projection has layers.
class ResidualLayer final : public Layer {
 public:
  ResidualLayer(const std::string& name, Layers body, Layers projection, double drop_path)
      : body_(std::move(body)),
        projection_(std::move(projection)),
        path_(name),
        drop_path_(drop_path) {}
  void declare(parallel::ParameterList& list) override;
  Tensor forward(MicroBatchPass& pass, const Tensor& x, const Tensor& residual) override;
  Tensor backward(MicroBatchPass& pass, const Tensor& dy, bool want_dx,
                  const Tensor& addend) override;
  bool reads_output() const override { return body_adds() && body_.last().reads_output(); }
  bool keeps_gradient() const override { return false; }

 private:
  /// Returns whether the last layer of the body adds the other summand itself.
  bool body_adds() const { return drop_path_ == 0 && body_.last().adds_residual(); }
  ops::Dropout path_of(MicroBatchPass& pass, const Tensor& y) const;
  Layers body_, projection_;
  DropoutKey path_;
  double drop_path_;
};

}  // namespace trireme::model::chain
