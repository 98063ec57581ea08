// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "train/run/restore.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/trainer.hpp"

namespace trireme::train {

/// Records a start that is about to train: its deck in deck.toml and in a file of its own under
/// decks/, and an entry in environment.json. `hosts`: the host of each rank.
///
/// Rank 0 writes. Collective; throws InputError or Failure on all ranks.
void record_start(const Run& run, const TrainRequest& request, const RestoredRun& restored,
                  const std::vector<std::string>& hosts, const comm::Environment& environment,
                  Log& log);

}  // namespace trireme::train
