// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "options.hpp"
#include "trireme/keys/fields.hpp"
#include "trireme/model/model.hpp"

namespace trireme::model::chain {

// Largest numbers of a deck: blocks with their repetitions, bodies within bodies, and bytes of the
// list as the resolved deck has it. Checkpoints store that deck in an attribute of 64 KiB.
inline constexpr std::int64_t max_blocks = 4096;
inline constexpr int max_depth = 8;
inline constexpr std::size_t max_bytes = 48 << 10;

/// The field of model.blocks.
keys::Field block_list(std::vector<Entry>& list);

/// Returns the number of blocks with their repetitions, those of bodies too.
std::int64_t block_count(const std::vector<Entry>& list);

/// Returns the first block that computes something else in `after`, in words; empty: none. Widths,
/// rates and initial weights may differ.
std::string list_difference(const std::vector<Entry>& before, const std::vector<Entry>& after);

/// Returns whether the list, or a body in it, has an entry with this property.
template <class Property>
bool contains(const std::vector<Entry>& list, const Property& property) {
  return std::ranges::any_of(list, [&](const Entry& entry) {
    const auto* residual = entry.as<Residual>();
    return property(entry) || (residual && contains(residual->body, property));
  });
}

/// Makes the network for an input of this shape, with as many outputs as `classes`; 0: as many as
/// its last block has. Throws InputError if a block does not fit the one in front of it.
ModelParts make_network(const std::vector<Entry>& list, const Shape& input, std::int64_t classes);

}  // namespace trireme::model::chain
