#pragma once

#include "trireme/train/run.hpp"
#include "trireme/train/run_state.hpp"
#include "trireme/train/trainer.hpp"

namespace trireme::train {

/// Where a run goes on.
struct Restored {
  RunState state;
  bool own = false;  ///< from a checkpoint of this run's folder
};

/// Puts the replica where the run goes on: from a checkpoint as the policy says, else from initial weights. Says which file, which were set
/// aside and why, and what changed in the deck. Collective. Throws InputError on all ranks: a damaged folder without `--restart none`, a change
/// that may not be made, `required` without a checkpoint.
Restored restore(Run& run, const RestartPolicy& policy, Log& log);

/// Reads weights and running statistics of a checkpoint into a replica of this deck (evaluate). Collective. Throws InputError where they are of another model.
void load_weights(Replica& replica, const deck::Deck& deck, const std::string& path);

}  // namespace trireme::train
