// SPDX-License-Identifier: Apache-2.0
//
// One layer of a transformer as a block: attention and mlp, each with a norm in front and a
// residual sum behind (pre-norm: Xiong et al. 2020).
//
//   forward   x -> norm -> qkv -> rotary -> attention -> projection (+ x)      = middle
//             middle -> norm -> up -> GELU or SwiGLU -> down (+ middle)        = y
//   backward  the same steps in reverse; each pops what its forward saved
//
// With model.drop_path the branches in front of both sums are dropped for some samples (stochastic
// depth). In text generation attention reads keys and values of earlier positions from a cache:
//
//   qkv of the new rows -> rotary of q, k -> k, v into the cache's rows [first, first + rows)
//   q of the new rows, cache rows [0, first + rows) -> attention -> projection
//
// Rotary positions are applied in place to q and k. Weights are split by heads and by mlp
// columns over the tensor group; layers.hpp has the linear layers.
#include <cmath>
#include <utility>

#include "layers.hpp"
#include "parts.hpp"
#include "trireme/ops/activation.hpp"
#include "trireme/ops/attention.hpp"
#include "trireme/ops/rotary.hpp"

namespace trireme::model {
namespace {

/// One transformer layer on rows [held, C]: x + attention(norm(x)), then that + mlp(norm(that)).
class TransformerBlock final : public Block {
 public:
  TransformerBlock(const TransformerOptions& options, const TransformerNames& names,
                   const TransformerNames::Layer& layer, std::int64_t index, double drop_path)
      : options_(options),
        index_(index),
        name_(layer.block),
        attention_dropout_(layer.block + ".attention"),
        attention_norm_(layer.attention_norm, options),
        qkv_({.names = layer.qkv,
              .sections = qkv_sections(options),
              .in = options.width,
              .order = names.order,
              .bias = options.bias}),
        projection_(residual_options(options, names, layer.projection, options.width, drop_path)),
        mlp_norm_(layer.mlp_norm, options),
        up_({.names = layer.up,
             .sections = std::vector<std::int64_t>(names.is_gated ? 2 : 1, options.mlp_width),
             .in = options.width,
             .order = names.order,
             .bias = options.bias}),
        down_(residual_options(options, names, layer.down, options.mlp_width, drop_path)) {}
  std::string name() const override { return name_; }

  void declare(parallel::ParameterList& list) override {
    attention_norm_.declare(list);
    qkv_.declare(list);
    projection_.declare(list);
    mlp_norm_.declare(list);
    up_.declare(list);
    down_.declare(list);
  }

  Shape output_shape(const Shape& input) const override {
    TRIREME_EXPECT(input.rank() == 2 && input[1] == options_.width);
    return input;
  }

  Tensor forward(MicroBatchPass& pass, const Tensor& x) override {
    const Tensor attended = attention(pass, qkv_.forward(pass, attention_norm_.forward(pass, x)));
    const Tensor middle = projection_.forward(pass, attended, x);
    const Tensor up = up_.forward(pass, mlp_norm_.forward(pass, middle), fused_gelu()),
                 active = is_gated() ? swiglu(pass, up) : up;
    return down_.forward(pass, active, middle);
  }

  Tensor backward(MicroBatchPass& pass, const Tensor& dy) override {
    ops::Context& context = pass.context();
    const Tensor dx = pass.gradient(dy.dtype, dy.shape);
    {
      const ArenaScope scope(context.workspace());
      const Tensor dactive = down_.backward(pass, dy, fused_gelu()),
                   dup = is_gated() ? swiglu_backward(pass, dactive) : dactive;
      // From here on dy holds the gradient of `middle`, the sum between attention and mlp.
      mlp_norm_.backward(pass, up_.backward(pass, dup), dy, dy);
    }
    const ArenaScope scope(context.workspace());
    const Tensor dqkv = attention_backward(pass, projection_.backward(pass, dy));
    attention_norm_.backward(pass, qkv_.backward(pass, dqkv), dy, dx);
    return dx;
  }

 private:
  /// Returns the columns of q, k and v. With grouped-query attention k and v have fewer heads.
  static std::vector<std::int64_t> qkv_sections(const TransformerOptions& o) {
    return {o.heads * o.head_width(), o.kv_heads * o.head_width(), o.kv_heads * o.head_width()};
  }
  /// Options of a linear layer that ends a residual branch. Its initial weights shrink with the
  /// number of layers (Radford et al. 2019, section 2.3).
  static RowParallelLinear::Options residual_options(const TransformerOptions& options,
                                                     const TransformerNames& names,
                                                     const std::string& name, std::int64_t in,
                                                     double drop_path) {
    return {.name = name,
            .in = in,
            .out = options.width,
            .order = names.order,
            .bias = options.bias,
            .deviation = 0.02 / std::sqrt(2.0 * static_cast<double>(options.layers)),
            .dropout = options.dropout,
            .drop_path = drop_path,
            .context = options.context};
  }

  /// Describes the attention of this rank's heads over all rows.
  ops::Attention problem(const MicroBatchPass& pass, const Tensor& qkv) const {
    const std::int64_t size = pass.tensor().size(), heads = options_.heads / size,
                       rows = qkv.shape[0];
    const bool is_sequence = pass.sequence().has_value();
    return {.batch = is_sequence ? 1 : rows / options_.context,
            .context = is_sequence ? pass.first_position() + rows : options_.context,
            .heads = heads,
            .kv_heads = options_.kv_heads / size,
            .head_width = options_.head_width(),
            .dtype = qkv.dtype,
            .dropout = pass.training() ? static_cast<float>(options_.dropout) : 0.0f,
            .key = attention_dropout_.layer_key(pass),
            .sample_keys = pass.sample_keys(),
            .first_head = heads * pass.tensor().rank(),
            .first_query = pass.first_position(),
            .mask = ops::AttentionMask::causal};
  }
  /// Applies rotary positions to q and k in place, or undoes them (`inverse`, for gradients).
  void apply_rotary(MicroBatchPass& pass, const Tensor& qkv, bool inverse) const {
    if (options_.positions != PositionKind::rope) return;
    const ops::Attention op = problem(pass, qkv);
    const ops::Rotary rotary{.rows = qkv.shape[0],
                             .columns = qkv.shape[1],
                             .heads = op.heads + op.kv_heads,
                             .head_width = op.head_width,
                             .context = op.context,
                             .dtype = qkv.dtype,
                             .base = options_.rope_base,
                             .first = op.first_query};
    ops::rotary(pass.context(), rotary, qkv, inverse);
  }

  Tensor attention(MicroBatchPass& pass, const Tensor& qkv) const {
    const ops::Attention op = problem(pass, qkv);
    apply_rotary(pass, qkv, false);
    const Tensor out = pass.activation(qkv.dtype, {qkv.shape[0], op.out_width()});
    const Tensor log_sum = pass.activation(DType::float32, {op.batch, op.heads, op.queries()});
    if (pass.sequence() && !pass.sequence()->cache.empty()) {
      const Tensor& cache = pass.sequence()->cache[static_cast<std::size_t>(index_)];
      ops::attention_forward(pass.context(), op, qkv, cache, out, log_sum);
    } else {
      ops::attention_forward(pass.context(), op, qkv, out, log_sum);
    }
    pass.push_saved(qkv);
    pass.push_saved(out);
    pass.push_saved(log_sum);
    return out;
  }
  Tensor attention_backward(MicroBatchPass& pass, const Tensor& dout) const {
    const Tensor log_sum = pass.pop_saved(), out = pass.pop_saved(), qkv = pass.pop_saved();
    const Tensor dqkv = pass.context().workspace().allocate(qkv.dtype, qkv.shape);
    ops::attention_backward(pass.context(), problem(pass, qkv), qkv, out, log_sum, dout, dqkv);
    apply_rotary(pass, dqkv, true);
    return dqkv;
  }

  bool is_gated() const { return options_.mlp == MlpKind::swiglu; }
  FusedGelu fused_gelu() const { return is_gated() ? FusedGelu{} : ops::Gelu::tanh; }
  Tensor swiglu(MicroBatchPass& pass, const Tensor& up) const {
    const Tensor y = pass.activation(up.dtype, {up.shape[0], up.shape[1] / 2});
    ops::swiglu_forward(pass.context(), up, y);
    pass.push_saved(up);
    return y;
  }
  Tensor swiglu_backward(MicroBatchPass& pass, const Tensor& dy) const {
    const Tensor up = pass.pop_saved();
    // The result overwrites the input of forward, which nothing reads any more.
    ops::swiglu_backward(pass.context(), up, dy, up);
    return up;
  }

  TransformerOptions options_;
  std::int64_t index_;  ///< of the layer, from 0
  std::string name_;
  DropoutKey attention_dropout_;
  RowNormLayer attention_norm_;
  ColumnParallelLinear qkv_;
  RowParallelLinear projection_;
  RowNormLayer mlp_norm_;
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

}  // namespace

std::unique_ptr<Block> make_transformer_block(const TransformerOptions& options,
                                              std::int64_t layer) {
  const TransformerNames names(options);
  return std::make_unique<TransformerBlock>(options, names, names.layer(layer), layer,
                                            drop_path_at(options.drop_path, layer, options.layers));
}

}  // namespace trireme::model
