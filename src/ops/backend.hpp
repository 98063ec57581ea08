#pragma once

#include <optional>

#include "cpu/library.hpp"
#include "cuda/library.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Each device library's side of a context; a context has that of its target.
struct Context::Backend {
  std::optional<cpu::Library> cpu;
  std::unique_ptr<cuda::Library> cuda;
};

}  // namespace trireme::ops
