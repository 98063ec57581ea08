#pragma once

#include <optional>

#include "cpu/library.hpp"
#include "cuda/library.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// The device library of a context: the one of its target is set, the other is empty. On meta with
/// target CUDA both are empty.
struct Context::Backend {
  std::optional<cpu::Library> cpu;
  std::unique_ptr<cuda::Library> cuda;
};

}  // namespace trireme::ops
