// SPDX-License-Identifier: Apache-2.0
//
// The list of ops: its names, which users have in machine files and JSON, and its fused ops.

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "trireme/ops/op.hpp"

namespace trireme::ops {
namespace {

/// A name that is changed or removed here makes files of users invalid; new ones are added.
TEST(OpList, KeepsTheNamesOfMachineFilesAndJson) {
  const std::vector<std::string_view> expected{"add",
                                               "add_bias",
                                               "add_positions",
                                               "attention_backward",
                                               "attention_forward",
                                               "average_pool_backward",
                                               "average_pool_forward",
                                               "batch_norm_apply",
                                               "batch_norm_apply_joined",
                                               "batch_norm_backward",
                                               "batch_norm_backward_joined",
                                               "batch_norm_inference",
                                               "batch_norm_join",
                                               "batch_norm_statistics",
                                               "batch_norm_statistics_of_sums",
                                               "cast",
                                               "cast_tensors",
                                               "change_channels",
                                               "column_sums",
                                               "convolution_backward_data",
                                               "convolution_backward_weight",
                                               "convolution_forward",
                                               "convolution_statistics_forward",
                                               "copy",
                                               "cross_entropy",
                                               "decide_step",
                                               "dropout",
                                               "dropout_add",
                                               "embedding_backward",
                                               "embedding_forward",
                                               "fill",
                                               "fused_softmax",
                                               "gather_patches",
                                               "gelu_backward",
                                               "gelu_forward",
                                               "group_norm_backward",
                                               "group_norm_forward",
                                               "lamb_trust",
                                               "lars_trust",
                                               "layer_scale_backward",
                                               "layer_scale_forward",
                                               "linear_add_forward",
                                               "linear_backward_data",
                                               "linear_backward_data_gelu",
                                               "linear_backward_weight",
                                               "linear_forward",
                                               "linear_gelu_forward",
                                               "matrix_norm",
                                               "max_pool_backward",
                                               "max_pool_forward",
                                               "mean_pool_backward",
                                               "mean_pool_forward",
                                               "merge_statistics",
                                               "pack_status",
                                               "periodic_pad_backward",
                                               "periodic_pad_forward",
                                               "positions_backward",
                                               "prepare_images",
                                               "read_status",
                                               "relu_backward",
                                               "relu_forward",
                                               "rotary",
                                               "row_norm_backward",
                                               "row_norm_forward",
                                               "row_square_sums",
                                               "scaled_copy",
                                               "scatter_patches",
                                               "silu_backward",
                                               "silu_forward",
                                               "softmax_gradient",
                                               "softmax_statistics",
                                               "softmax_sums",
                                               "sum_lists",
                                               "swap",
                                               "swiglu_backward",
                                               "swiglu_forward",
                                               "transpose",
                                               "update_ema",
                                               "upsample_backward",
                                               "upsample_forward",
                                               "value_loss",
                                               "weighted_sum"};
  std::vector<std::string_view> names;
  for (const OpEntry& op : op_list) names.push_back(op.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, expected);
}

TEST(OpList, FusedOpsHaveTheProductsOfAnotherOp) {
  for (const OpEntry& fused : op_list) {
    if (fused.unfused.empty()) continue;
    const auto* plain = std::find_if(std::begin(op_list), std::end(op_list),
                                     [&](const auto& op) { return op.name == fused.unfused; });
    ASSERT_NE(plain, std::end(op_list)) << fused.name;
    EXPECT_TRUE(plain->kind == fused.kind && plain->pass == fused.pass) << fused.name;
    EXPECT_EQ(plain->unfused, "") << fused.name;
  }
}

TEST(OpList, AnOpHasThePropertiesOfItsEntry) {
  constexpr Op op = "linear_backward_data_gelu";
  EXPECT_EQ(op.name, "linear_backward_data_gelu");
  EXPECT_EQ(op.pass, ProductPass::backward_data);
  EXPECT_EQ(op.unfused, "linear_backward_data");
  EXPECT_EQ(Op("linear_forward"), Op("linear_forward"));
  EXPECT_FALSE(op == Op("linear_backward_data"));
  EXPECT_EQ(Op().name, "");
}

}  // namespace
}  // namespace trireme::ops
