// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::ops {

/// The matrix products of an op. Machine files have a class of efficiencies for each kind and pass.
enum class ProductKind : std::uint8_t { plain, convolution, attention };
enum class ProductPass : std::uint8_t { forward, backward, backward_data, backward_weight };

/// An entry of the list of ops.
struct OpEntry {
  std::string_view name;  ///< As in machine files and JSON, which users keep: never changed.
  ProductKind kind = ProductKind::plain;
  ProductPass pass = ProductPass::forward;
  std::string_view unfused = {};  ///< Fused ops: the op with the same products.
};

/// All ops but the passes of update rules, which their rules list (optim::rules()): first those
/// with products.
// clang-format off
inline constexpr OpEntry op_list[] = {
    {"linear_forward"},
    {"linear_backward_data", ProductKind::plain, ProductPass::backward_data},
    {"linear_backward_weight", ProductKind::plain, ProductPass::backward_weight},
    {"linear_add_forward", ProductKind::plain, ProductPass::forward, "linear_forward"},
    {"linear_gelu_forward", ProductKind::plain, ProductPass::forward, "linear_forward"},
    {"linear_backward_data_gelu", ProductKind::plain, ProductPass::backward_data,
     "linear_backward_data"},
    {"convolution_forward", ProductKind::convolution, ProductPass::forward},
    {"convolution_backward_data", ProductKind::convolution, ProductPass::backward_data},
    {"convolution_backward_weight", ProductKind::convolution, ProductPass::backward_weight},
    {"convolution_statistics_forward", ProductKind::convolution, ProductPass::forward,
     "convolution_forward"},
    {"attention_forward", ProductKind::attention, ProductPass::forward},
    {"attention_backward", ProductKind::attention, ProductPass::backward},
    {"add"}, {"add_bias"}, {"add_positions"}, {"average_pool_backward"}, {"average_pool_forward"},
    {"batch_norm_apply"}, {"batch_norm_apply_joined"}, {"batch_norm_backward"},
    {"batch_norm_backward_joined"}, {"batch_norm_inference"}, {"batch_norm_join"},
    {"batch_norm_statistics"}, {"batch_norm_statistics_of_sums"}, {"cast"}, {"cast_tensors"},
    {"change_channels"}, {"column_sums"}, {"copy"}, {"cross_entropy"}, {"decide_step"}, {"dropout"},
    {"dropout_add"}, {"embedding_backward"}, {"embedding_forward"}, {"fill"}, {"fused_softmax"},
    {"gather_patches"}, {"gelu_backward"}, {"gelu_forward"}, {"group_norm_backward"},
    {"group_norm_forward"}, {"lamb_trust"}, {"lars_trust"}, {"layer_scale_backward"},
    {"layer_scale_forward"}, {"matrix_norm"}, {"max_pool_backward"}, {"max_pool_forward"},
    {"mean_pool_backward"}, {"mean_pool_forward"}, {"merge_statistics"}, {"pack_status"},
    {"periodic_pad_backward"}, {"periodic_pad_forward"}, {"positions_backward"}, {"prepare_images"},
    {"read_status"}, {"relu_backward"}, {"relu_forward"}, {"rotary"}, {"row_norm_backward"},
    {"row_norm_forward"}, {"row_square_sums"}, {"scaled_copy"}, {"scatter_patches"},
    {"silu_backward"}, {"silu_forward"}, {"softmax_gradient"}, {"softmax_statistics"},
    {"softmax_sums"}, {"sum_lists"}, {"swap"}, {"swiglu_backward"}, {"swiglu_forward"},
    {"transpose"}, {"update_ema"}, {"upsample_backward"}, {"upsample_forward"}, {"value_loss"},
    {"weighted_sum"}};
// clang-format on

/// An op, made from its name while the program is compiled: a name that is not in the list does not
/// compile.
struct Op : OpEntry {
  constexpr Op() = default;
  consteval Op(const char* op_name) : OpEntry(*op_list) {
    for (const OpEntry* entry = op_list; name != op_name;) OpEntry::operator=(*++entry);
  }
  /// The pass of an update rule.
  static consteval Op of_rule(const char* op_name) {
    Op op;
    op.name = op_name;
    return op;
  }
  constexpr bool operator==(const Op& other) const { return name == other.name; }
};

}  // namespace trireme::ops
