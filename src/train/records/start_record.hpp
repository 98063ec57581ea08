// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/run/restore.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/train/run/job_time.hpp"
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

/// Returns the job of the latest start in environment.json and its energy, which Slurm knows only
/// after its end. Returns nothing if it was `job`, or Slurm does not know. Does not throw.
std::optional<JobEnergy> previous_job_energy(const monitor::RunFolder& folder,
                                             const std::string& job);

}  // namespace trireme::train
