#pragma once

#include <optional>
#include <string>

#include "trireme/checkpoint/folder.hpp"
#include "trireme/checkpoint/import_export.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/run_state.hpp"
#include "trireme/train/trainer.hpp"

namespace trireme::train {

/// Where a run goes on.
struct RestoredRun {
  RunState state;
  bool from_own_folder = false;  ///< from a checkpoint of this run's folder
  std::string deck;              ///< of the checkpoint gone on from (TOML); may be empty
};

/// Puts the replica where the run goes on: from a checkpoint as the policy says, else from initial
/// weights. Says which file, which were set aside and why, and what changed in the deck.
/// Collective. Throws InputError on all ranks: a damaged folder without `--restart none`, a change
/// that may not be made, `required` without a checkpoint. `newest`: what find_newest() said of the
/// run's folder, where this start has asked before: for that every byte of a checkpoint is read.
RestoredRun restore(Run& run, const RestartPolicy& policy,
                    const std::optional<checkpoint::CheckpointChoice>& newest, Log& log);

/// Puts the replica back to a checkpoint of this run. Collective. Throws InputError on all ranks
/// where it is not whole.
RunState reload_checkpoint(Run& run, const std::string& path, Log& log);

/// What a checkpoint says of itself, once its seal is known to hold: every byte is read, by rank 0.
/// Collective. Throws InputError.
checkpoint::Contents read_verified_contents(const comm::Communicator& world,
                                            const std::string& path);

/// Reads weights and running statistics of a checkpoint with these contents into a replica of this
/// deck (evaluate, generate), which keeps no average of its own. Collective. Throws InputError
/// where they are of another model, or not there.
void load_weights(Replica& replica, const deck::Deck& deck, const checkpoint::Contents& contents,
                  const std::string& path, checkpoint::Weights weights);

}  // namespace trireme::train
