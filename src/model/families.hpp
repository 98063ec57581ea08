// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/model/family.hpp"

namespace trireme::model {

extern const Family resnet_family, mlp_family, transformer_family;

// Larger than any model in use, and small enough that products of extents cannot overflow.
inline constexpr double max_layers = 1024, max_width = 65536, max_length = 1 << 20;

/// Family::missing_batch_norm and broken_joined_norms_rule of a family without residual norms.
std::optional<BrokenRule> no_batch_norm(const ModelOptions& options);
std::optional<BrokenRule> no_joined_norms(const ModelOptions& options);

}  // namespace trireme::model
