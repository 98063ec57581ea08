#pragma once

#include <optional>

#include "cpu/library.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Each device library's side of a context; a context has that of its target.
struct Context::Backend {
  std::optional<cpu::Library> cpu;
};

}  // namespace trireme::ops
