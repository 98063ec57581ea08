#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Whether the context's kernels may read what `pointer`, which no tensor stands for, points to. On
/// meta nothing is read.
inline bool readable(const Context& context, const void* pointer) {
  return context.meta() || device_of(pointer).kind == context.stream().device.kind;
}

}  // namespace trireme::ops
