// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/base/philox.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Returns whether `number` is equal on all ranks. Collective: two all-reduces.
inline bool equal_on_all_ranks(const comm::Communicator& world, std::uint64_t number) {
  std::uint64_t low = number, high = number;
  world.all_reduce(std::span(&low, 1), comm::Reduction::min);
  world.all_reduce(std::span(&high, 1), comm::Reduction::max);
  return low == high;
}

/// Returns a hash of the names and shapes of all tensors, in their order.
inline std::uint64_t hash_names_and_shapes(std::span<const TensorSlice> slices) {
  std::uint64_t hash = slices.size();
  for (const TensorSlice& slice : slices)
    hash = mix64(hash ^ random_key(0, slice.path + to_string(slice.spec->shape)));
  return hash;
}

}  // namespace trireme::checkpoint
