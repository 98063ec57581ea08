#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::parallel {

/// Of `parts` parts of `bytes` each, one behind the other: as comm::Engine::all_gather takes them.
inline std::vector<std::int64_t> equal_bounds(std::size_t parts, std::size_t bytes) {
  std::vector<std::int64_t> bounds;
  for (std::size_t part = 0; part <= parts; ++part)
    bounds.push_back(static_cast<std::int64_t>(part * bytes));
  return bounds;
}

}  // namespace trireme::parallel
