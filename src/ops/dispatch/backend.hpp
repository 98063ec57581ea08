// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "ops/cpu/library.hpp"
#include "ops/cuda/library.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// The device library of a context, and what it keeps: the library of its target is set, the other
/// is empty. On meta with target CUDA both are empty.
struct Context::Backend {
  std::optional<cpu::Library> cpu;
  std::unique_ptr<cuda::Library> cuda;
  /// Float32 memory for the sums of channels, 0 except between the convolution that adds to it and
  /// the kernel that reads it. Allocated anew for a wider layer.
  Tensor channel_sums;
};

}  // namespace trireme::ops
