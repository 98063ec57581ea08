// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/checkpoint/transformers_config.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/model/options.hpp"

namespace trireme::app {

/// Reads a `config.json` and compares it with the model of the deck, a gpt. Returns none if the
/// file describes no model of transformers.
///
/// Throws InputError if the file describes another model than the deck, with every difference and
/// the lines of a deck for it, or a model that this program does not compute. A shorter context
/// than that of a model with rotary positions is no difference; neither is dropout.
std::optional<checkpoint::TransformersConfig> compare_with_transformers(const std::string& path,
                                                                        const deck::Deck& deck);

/// Returns the model of a deck, a gpt, as transformers describes it. Throws InputError if neither
/// of its families computes the model.
checkpoint::TransformersConfig transformers_config_of(const model::TransformerOptions& gpt,
                                                      std::int64_t vocabulary);

}  // namespace trireme::app
