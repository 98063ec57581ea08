// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/base/broken_rule.hpp"
#include "trireme/model/options.hpp"

namespace trireme::model {

// The rules between the extents of a model and of its tensor group. The deck checks them when it is
// read, Model when it is built. Model alone checks that the tensor group is not larger than the
// vocabulary, which can follow from the data. All functions return nothing if the rule holds.

/// Returns the greatest size that a tensor group can have. It divides heads, kv_heads and
/// mlp_width.
std::int64_t max_tensor_size(const TransformerOptions& gpt);

/// Returns the broken rules between width, heads and kv_heads. All extents are positive.
std::vector<BrokenRule> broken_head_rules(const TransformerOptions& gpt,
                                          const KeyNotes& notes = {});

/// Returns the broken rule between the model and the size of the tensor group that splits it.
std::optional<BrokenRule> broken_split_rule(const ModelOptions& options, std::int64_t tensor,
                                            const KeyNotes& notes = {});

/// Returns the broken rule between the rows of a micro-batch and the size of the tensor group,
/// which splits them under parallel.sequence.
std::optional<BrokenRule> broken_row_rule(std::int64_t micro, std::int64_t context,
                                          std::int64_t tensor, const KeyNotes& notes = {});

}  // namespace trireme::model
