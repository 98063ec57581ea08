// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Returns whether the context's kernels can read memory that no Tensor describes. Always true on
/// meta, where nothing is read.
inline bool readable(const Context& context, const void* pointer) {
  return context.meta() || device_of(pointer).kind == context.stream().device.kind;
}

}  // namespace trireme::ops
