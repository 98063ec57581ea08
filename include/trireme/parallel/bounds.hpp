// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::parallel {

/// Returns the parts + 1 byte offsets of `parts` adjacent parts of `bytes` each, for
/// comm::Engine::all_gather.
inline std::vector<std::int64_t> equal_bounds(std::size_t parts, std::size_t bytes) {
  std::vector<std::int64_t> bounds;
  for (std::size_t part = 0; part <= parts; ++part)
    bounds.push_back(static_cast<std::int64_t>(part * bytes));
  return bounds;
}

}  // namespace trireme::parallel
