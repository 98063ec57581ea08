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
// columns over the tensor group; parallel_layers.hpp has the linear layers.
#include "model/attention_block.hpp"

#include <utility>

#include <fmt/format.h>

#include "model/parallel_layers.hpp"
#include "trireme/base/text.hpp"
#include "trireme/ops/rotary.hpp"

namespace trireme::model {
namespace {

/// x + attention(norm(x)), then that + mlp(norm(that)), on rows [held, C].
class AttentionBlock final : public Block {
 public:
  explicit AttentionBlock(const AttentionBlockOptions& options)
      : options_(options),
        attention_dropout_(options.names.block + ".attention"),
        attention_norm_(options.names.attention_norm, norm_options(options)),
        qkv_({.names = options.names.qkv,
              .sections = qkv_sections(options),
              .in = options.width,
              .order = options.order,
              .bias = options.qkv_bias,
              .deviation = options.deviation}),
        projection_(branch_end(options, options.names.projection, options.names.attention_scale,
                               options.width)),
        mlp_norm_(options.names.mlp_norm, norm_options(options)),
        up_({.names = options.names.up,
             .sections = std::vector<std::int64_t>(is_gated() ? 2 : 1, options.mlp_width),
             .in = options.width,
             .order = options.order,
             .bias = options.bias,
             .deviation = options.deviation}),
        down_(branch_end(options, options.names.down, options.names.mlp_scale, options.mlp_width)) {
  }
  std::string name() const override { return options_.names.block; }

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
  static RowNormLayer::Options norm_options(const AttentionBlockOptions& options) {
    return {.kind = options.norm, .width = options.width, .epsilon = options.norm_epsilon};
  }
  /// Returns the columns of q, k and v. With grouped-query attention k and v have fewer heads.
  static std::vector<std::int64_t> qkv_sections(const AttentionBlockOptions& o) {
    return {o.heads * o.head_width(), o.kv_heads * o.head_width(), o.kv_heads * o.head_width()};
  }
  /// Options of a linear layer that ends a residual branch.
  static RowParallelLinear::Options branch_end(const AttentionBlockOptions& options,
                                               const std::string& name,
                                               const std::string& scale_name, std::int64_t in) {
    return {.name = name,
            .in = in,
            .out = options.width,
            .order = options.order,
            .bias = options.bias,
            .deviation = options.branch_deviation,
            .dropout = options.dropout,
            .drop_path = options.drop_path,
            .context = options.context,
            .scale = options.layer_scale,
            .scale_name = scale_name};
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
            .mask = options_.mask};
  }
  /// Applies rotary positions to q and k in place, or undoes them (`inverse`, for gradients).
  void apply_rotary(MicroBatchPass& pass, const Tensor& qkv, bool inverse) const {
    if (!options_.rotary_base) return;
    const ops::Attention op = problem(pass, qkv);
    const ops::Rotary rotary{.rows = qkv.shape[0],
                             .columns = qkv.shape[1],
                             .heads = op.heads + op.kv_heads,
                             .head_width = op.head_width,
                             .context = op.context,
                             .dtype = qkv.dtype,
                             .base = *options_.rotary_base,
                             .first = op.first_query};
    ops::rotary(pass.context(), rotary, qkv, inverse);
  }

  Tensor attention(MicroBatchPass& pass, const Tensor& qkv) const {
    const ops::Attention op = problem(pass, qkv);
    apply_rotary(pass, qkv, false);
    const Tensor out = pass.activation(qkv.dtype, {qkv.shape[0], op.out_width()});
    const Tensor log_sum = pass.activation(DType::float32, {op.batch, op.heads, op.queries()});
    if (pass.sequence() && !pass.sequence()->cache.empty()) {
      const Tensor& cache = pass.sequence()->cache[static_cast<std::size_t>(options_.index)];
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
  FusedGelu fused_gelu() const { return is_gated() ? FusedGelu{} : options_.gelu; }
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

  AttentionBlockOptions options_;
  DropoutKey attention_dropout_;
  RowNormLayer attention_norm_;
  ColumnParallelLinear qkv_;
  RowParallelLinear projection_;
  RowNormLayer mlp_norm_;
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

}  // namespace

std::unique_ptr<Block> make_attention_block(const AttentionBlockOptions& options) {
  return std::make_unique<AttentionBlock>(options);
}

std::optional<BrokenRule> broken_head_rule(std::int64_t width, std::int64_t heads,
                                           const KeyNotes& notes) {
  if (width % heads == 0) return std::nullopt;
  const bool blames_width = notes.is_default("model.heads") && !notes.is_default("model.width");
  return BrokenRule{
      blames_width ? "model.width" : "model.heads",
      fmt::format("model.width = {}{} is not a multiple of model.heads = {}{} (all heads "
                  "have the same width); use model.width = {}, or model.heads = {}",
                  width, notes.inner("model.width"), heads, notes("model.heads"),
                  nearest_multiples(width, heads), nearest_divisors(heads, width))};
}

std::optional<BrokenRule> broken_depth_rule(double drop_path, std::int64_t layers,
                                            const KeyNotes& notes) {
  if (drop_path == 0 || layers > 1) return std::nullopt;
  return BrokenRule{"model.drop_path",
                    fmt::format("{} is the probability at the last block, and 0 that at the "
                                "first, but model.layers = 1{}; use drop_path = 0, or layers = 2",
                                drop_path, notes("model.layers"))};
}

}  // namespace trireme::model
