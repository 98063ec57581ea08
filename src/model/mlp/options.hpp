// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::model {

/// Keys of [model] for kind = "mlp", a multilayer perceptron.
struct MlpOptions {
  std::vector<std::int64_t> widths;  ///< of the hidden layers
};

}  // namespace trireme::model
