// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "trireme/base/log.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/plan/machine/machine.hpp"
#include "trireme/train/records/prediction_comparison.hpp"

namespace trireme::app {

/// Reads the machine of the key monitor.machine; none if the deck has no such key. Throws
/// InputError, which names the key, if there is no such machine or its file has mistakes.
std::optional<plan::Machine> read_machine_of(const deck::Deck& deck);

/// Returns a function that predicts a run on `machine` and writes prediction.json, the JSON object
/// of `trireme plan`, into the run folder. It warns if the run cannot be predicted. `deck_path`:
/// the deck's name for that file. `log` must outlive the function.
train::Predictor make_predictor(plan::Machine machine, std::string deck_path, Log& log);

}  // namespace trireme::app
