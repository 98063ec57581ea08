// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/model/model.hpp"

namespace trireme::model {

/// A block of a model, or its head, in numbers of one micro-batch.
struct BlockWork {
  std::string name, contents;
  Shape output = {};                  ///< of the head: empty
  std::int64_t weights = 0;           ///< trained elements
  double forward_flops = 0;           ///< 2 for each multiply-add of products and convolutions
  std::int64_t activation_bytes = 0;  ///< kept from forward to backward
};

/// Returns the blocks of a model on one rank, and its head last, computed in `compute` on the
/// device kind `target`. Allocates no device memory. Arguments as for Model.
std::vector<BlockWork> measure_blocks(const ModelOptions& options, const Shape& input,
                                      const AnswerExtents& outputs, DType compute,
                                      DeviceKind target);

}  // namespace trireme::model
