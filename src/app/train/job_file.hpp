// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"
#include "trireme/plan/machine/machine.hpp"

namespace trireme::app {

/// The values of a run that its job file states.
struct JobFile {
  std::string path;  ///< Of the job file, for its comment.
  std::string deck_path, run_name;
  std::string layout, prediction;  ///< Lines of its comment.
  const plan::Machine& machine;
  int ranks = 1;
  std::optional<double> run_seconds;     ///< Predicted; none: unknown.
  std::vector<keys::Override> settings;  ///< The keys that the run changes in the deck.
};

/// How long one job of a run may last, and how many jobs it takes.
struct JobTime {
  double seconds = 0;  ///< Of a job; whole minutes.
  int jobs = 1;
};

/// Returns the time of the jobs for a run of `run_seconds`: a quarter more, and ten minutes, for
/// evaluations, checkpoints and the start. A job lasts at most 12 hours, as in
/// slurm/train_64nodes.sh; of these a quarter of an hour is lost at its begin and end. An unknown
/// run takes ten jobs of 12 hours at most.
JobTime job_time_for(std::optional<double> run_seconds);

/// Returns a Slurm job file for the run, which starts slurm/train_64nodes.sh.
std::string job_file(const JobFile& job);

}  // namespace trireme::app
