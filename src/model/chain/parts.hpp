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

/// Returns the blocks with their repetitions written out, and with the same values in what the
/// shapes of tensors show and in what is beside the weights: widths, rates and initial weights.
std::vector<Entry> comparable(const std::vector<Entry>& list);

/// Returns the first block that differs, as in "blocks.3". Both lists are comparable().
std::string differing_block(std::vector<Entry> before, std::vector<Entry> after);

/// Returns whether the list, or a body in it, has an entry with this property.
template <class Property>
bool contains(const std::vector<Entry>& list, const Property& property) {
  return std::ranges::any_of(list, [&](const Entry& entry) {
    const auto* residual = entry.as<Residual>();
    return property(entry) || (residual && contains(residual->body, property));
  });
}

/// Makes the network for an input of this shape. Throws InputError if a block does not fit the one
/// in front of it, or if the last one does not give these outputs; count 0: any outputs.
ModelParts make_network(const std::vector<Entry>& list, const Shape& input,
                        const AnswerExtents& outputs);

/// Returns the outputs of the network for an input of this shape: [count], or [height, width,
/// count] of a map. Errors like make_network.
Shape output_shape(const std::vector<Entry>& list, const Shape& input);

}  // namespace trireme::model::chain
